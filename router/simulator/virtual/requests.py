"""Requests in virtual time: what a client asks for, and each attempt of it on a modelled engine."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import accumulate
from typing import Any, Final, Protocol

import orjson

from router.core.fleet.leg_timer import LegTimer
from router.core.request_facts import Facts, PrefixKeys, session_keys
from router.core.routes import ROUTES

ACCEPTED: Final = 200
"""The status of an accepted request and of a complete answer."""

NO_ANSWER: Final = 0
"""In place of a status: the connection was refused, or has broken."""

Done = Callable[["VirtualRequest", float], None]


@dataclass(slots=True, eq=False)
class VirtualRequest:
    """What a client requested and received. Times are virtual seconds."""

    number: int
    stream: int
    prompt: int
    output: int
    issued: float
    done: Done
    """Called once, when it has ended."""
    model: str | None = None
    is_held: bool = False
    """Whether its tokens are held back until the last one."""
    shows_first: bool = True
    """Whether the first of these is sent at once."""
    is_unary: bool = False
    """Whether its answer is unary."""
    is_poison: bool = False
    """Whether its prompt is the workload's `poison`."""
    contents: tuple[int, ...] = ()
    """The contents of the full KV blocks of prompt and answer; see `Attempt`."""
    session: int | None = None
    """The number of its session; None if it belongs to none."""
    first: float | None = None
    ended: float | None = None
    is_good: bool = False
    engine: int = -1
    """The engine that was last used for the answer."""
    is_remote: bool = False
    """Whether it was to be prefilled on another engine."""
    crosses: bool = False
    """Whether its KV cache came from another zone."""
    cached: int = 0
    """Prompt tokens that this engine had cached, according to the answer's usage."""
    pause: float = 0.0
    """The longest one between the last token of an engine and the first one of another engine that
    goes on; 0: none did."""


RAW = b'{"prompt":"","max_tokens":%d}'
BODY: Final[Mapping[str, Any]] = {"prompt": ""}
"""The body of each request; engines get its length separately."""

HALF_CHARACTER = 43
"""One token in so many is the first half of a character, whose text is held back."""


def facts_of(request: VirtualRequest, block_size: int, *, has_session: bool = False) -> Facts:
    """What routing knows of a request. `block_size`: tokens of a block of its contents.
    `has_session`: its session is read (--session-header)."""
    facts = Facts(
        route=ROUTES["/v1/completions"],
        model=request.model,
        stream=not request.is_unary,
        tokens=request.prompt,
        rule="simulated",
        direct_reason=None,
        raw=RAW % request.output,
        body=BODY,
    )
    if request.contents:
        blocks = request.contents[: request.prompt // block_size]
        keys = tuple(accumulate(blocks, lambda before, block: hash((before, block))))
        ends = range(block_size, block_size * len(keys) + 1, block_size)
        facts.prefix = PrefixKeys(keys, tuple(ends))
    if has_session and request.session is not None:
        facts.session = session_keys(b"%d" % request.session)
    return facts


class Stage(IntEnum):
    """The stage of an attempt on its engine."""

    ARRIVING = 0
    """Its KV cache is being transferred from a prefill engine."""
    WAITING = 1
    PREFILL = 2
    DECODE = 3
    ENDED = 4


class Listener(Protocol):
    """Receives the events of an attempt."""

    def on_first(self, attempt: "Attempt", now: float) -> None:
        """The first token has arrived."""

    def on_end(self, attempt: "Attempt", status: int, now: float) -> None:
        """All tokens have arrived (`ACCEPTED`), the connection was lost (`NO_ANSWER`), or the
        engine answered with an error, because it could not load the KV cache."""


@dataclass(slots=True, eq=False)
class Attempt:
    """One request on the engine with index `place`.

    With `transfer_seconds` its prompt's KV cache arrives from another engine after that time;
    `source()`: whether that engine still has it. None: the prompt is computed here.

    `contents` are numbers for the contents of each full block of prompt and answer: equal numbers
    at equal positions mean equal prefixes up to there. The engine sets `blocks`, `filled` and
    `cached`.
    """

    listener: Listener
    replica: int
    place: int
    prompt: int
    output: int
    model: str | None = None
    transfer_seconds: float | None = None
    source: Callable[[], bool] = bool
    contents: tuple[int, ...] = ()
    is_held: bool = False
    """Whether its tokens are held back until the last one."""
    is_unread: bool = False
    """Whether its router does not count its tokens, because the client does not read or is catching
    up."""
    is_poison: bool = False
    """Whether its prompt is the workload's `poison`."""
    blocks: list[int] = field(init=False, default_factory=list)
    """The engine's blocks that it holds."""
    filled: int = field(init=False, default=0)
    """How many of `blocks` are full and can be shared."""
    cached: int = field(init=False, default=0)
    """Prompt tokens that were in the prefix cache (usage.prompt_tokens_details.cached_tokens)."""
    last_step: int = field(init=False, default=0)
    """The engine's step with its last token; set at the first one."""
    made: int = field(init=False, default=0)
    """Tokens that were generated when it was cut off."""
    left: int = field(init=False)
    """Prompt tokens that have yet to be computed."""
    stage: Stage = Stage.WAITING
    arrived: float = 0.0
    """When it arrived at its engine."""
    checks: int = 0
    """The `checks` of its engine's `VainWaits` for its model when it was queued."""
    leg: LegTimer = field(init=False)

    @property
    def is_shown(self) -> bool:
        """Whether its router counts its tokens as they are generated."""
        return not self.is_held and not self.is_unread

    def __post_init__(self) -> None:
        self.left = 0 if self.transfer_seconds is not None else self.prompt


def events_so_far(attempt: Attempt) -> bytes:
    """What an engine sent before it failed behind the first token, in up to three events: with the
    text but for that of its last token, with that, and with tokens whose text it holds back.

    The id of a token is its position, so that tokens which are missing or come twice show.
    """
    shown = 1 if attempt.is_held else attempt.made - (attempt.made % HALF_CHARACTER == 0)
    made = range(attempt.prompt, attempt.prompt + attempt.made)
    events = []
    prompt: list[int] | None = list(range(attempt.prompt))
    for text, ids in (
        ("text", made[: shown - 1]),
        ("text", made[shown - 1 : shown]),
        ("", made[shown:]),
    ):
        choice = {"text": text, "finish_reason": None, "prompt_token_ids": prompt}
        prompt = None
        event = {"choices": [choice | {"token_ids": list(ids)}]}
        events.append(b"data: %b\n\n" % orjson.dumps(event))
    return b"".join(events)


class VainWaits:
    """How long requests waited in an engine's queue although another engine had a free slot."""

    def __init__(self) -> None:
        self.checks: defaultdict[str | None, int] = defaultdict(int)
        """By model: the number of checks at which requests for it were queued here while another
        engine had a free slot for them."""
        self._longest = 0

    def enter(self, attempt: Attempt) -> None:
        """Note that an attempt was queued."""
        attempt.checks = self.checks[attempt.model]

    def leave(self, attempt: Attempt) -> None:
        """Note that an attempt left the queue."""
        self._longest = self.longest((attempt,))

    def longest(self, queued: Iterable[Attempt]) -> int:
        """The most checks that one request waited, up to now or until it left."""
        waited = (self.checks[each.model] - each.checks for each in queued)
        return max(self._longest, *waited, 0)
