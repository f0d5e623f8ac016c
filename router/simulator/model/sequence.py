"""One sequence in an engine: what was requested, its progress, its next token, and the counters of
all sequences.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from zlib import crc32

from router.simulator.model.blocks import chain
from router.simulator.model.language import EOS, Language, encode, forced_end, pack


class Stage(Enum):
    """The stage of a sequence."""

    NEW = auto()
    WAITING = auto()
    LOADING = auto()
    """Its blocks are allocated and its KV cache is being loaded."""
    READY = auto()
    """Its KV cache was loaded, or loading failed."""
    RUNNING = auto()
    ENDED = auto()


Grammar = Callable[[int], str]
"""Writes an answer of a demanded form, for a seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The parts of a request that determine the tokens and the end."""

    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: frozenset[int] = frozenset()
    grammar: Grammar | None = None
    """None: any text."""


@dataclass(frozen=True, slots=True)
class RemoteRead:
    """A KV reference as received by a decode engine: where to read the prompt's blocks."""

    engine_id: object
    request_id: str
    """The prefill's; Mooncake, MoRIIO: the transfer id."""
    host: str
    port: int
    """Of the side channel; Mooncake: of the bootstrap server; MoRIIO: for notifications."""
    blocks: list[int]
    """Empty for Mooncake and MoRIIO, where the prefill engine knows them."""
    params: Mapping[str, Any]

    @classmethod
    def parse(cls, params: Mapping[str, Any]) -> "RemoteRead | None":
        """Parse the parameters. None for those that would fail an assertion of a real engine."""
        blocks = params.get("remote_block_ids")
        if isinstance(blocks, list) and blocks and isinstance(blocks[0], list):
            blocks = blocks[0]  # one list per KV group since 0.20; the simulator has one group
        request_id, host = params.get("remote_request_id"), params.get("remote_host")
        engine_id, port = params.get("remote_engine_id"), params.get("remote_port")
        if not isinstance(blocks, list) or not all(isinstance(block, int) for block in blocks):
            return None
        if not isinstance(request_id, str) or not isinstance(host, str):
            return None
        if engine_id is None or not isinstance(port, int):
            return None
        return cls(engine_id, request_id, host, port, blocks, params)

    @classmethod
    def parse_mooncake(cls, params: Mapping[str, Any]) -> "RemoteRead | None":
        """The same for Mooncake. None for incomplete parameters: the prompt is computed then."""
        transfer_id, engine_id = params.get("transfer_id"), params.get("remote_engine_id")
        address = params.get("remote_bootstrap_addr")
        if transfer_id is None or engine_id is None or not isinstance(address, str):
            return None
        found = urlsplit(address)
        return cls(engine_id, transfer_id, found.hostname or "", found.port or 80, [], params)

    @classmethod
    def parse_moriio(cls, params: Mapping[str, Any]) -> "RemoteRead | None":
        """The peer in either leg's parameters for MoRIIO. None without an address, which ends a
        real engine."""
        host, port = params.get("remote_host"), params.get("remote_notify_port")
        if not isinstance(host, str) or not host or not isinstance(port, int):
            return None
        engine_id, transfer_id = params.get("remote_engine_id"), params.get("transfer_id")
        return cls(engine_id, str(transfer_id), host, port, [], params)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt and what is derived from it; shared by the choices of a request."""

    tokens: list[int]
    language: Language
    state: int
    salt: int
    """Separates what must not share a prefix cache: models and cache salts."""
    block_size: int
    contents: list[int]
    """The contents of its blocks; the last one may be partly filled."""
    end_at: int | None
    """The length at which a marker in the prompt forces the end of sequence."""
    owner: str = ""
    """What `salt` is derived from: the model's name, a NUL and the cache salt."""

    @classmethod
    def of(cls, tokens: list[int], language: Language, block_size: int, salt: str) -> "Prompt":
        number = crc32(salt.encode("utf-8", "replace"))
        contents = chain(tokens, block_size, number)
        state, end_at = language.start(tokens), forced_end(tokens)
        return cls(tokens, language, state, number, block_size, contents, end_at, salt)

    @property
    def full_blocks(self) -> int:
        return len(self.tokens) // self.block_size

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(slots=True, eq=False)
class Sequence:
    """A prompt and its generated tokens."""

    request_id: str
    prompt: Prompt
    sampling: Sampling
    remote: RemoteRead | None = None
    keep: bool = False
    """Keep the blocks for a decode engine at the end."""
    transfer_id: str | None = None
    """The id under which Mooncake and MoRIIO keep them."""
    target: RemoteRead | None = None
    """MoRIIO: the decode engine to write to."""

    arrived: float = 0.0
    stage: Stage = Stage.NEW
    tokens: list[int] = field(init=False)
    state: int = field(init=False)
    blocks: list[int] = field(default_factory=list)
    contents: list[int] = field(init=False)
    """The contents of its full blocks, once they are computed."""
    filled: int = 0
    """Number of blocks whose content has been set."""
    computed: int = 0
    """Number of tokens whose KV cache is computed or loaded."""
    cached: int = 0
    """Prompt tokens found in its engine's prefix cache."""
    external: int = 0
    """Prompt tokens loaded from another engine."""
    admitted: float | None = None
    emitted: float | None = None
    """Time of the last token."""
    sound: bool = True
    """Whether the KV cache belongs to the tokens."""
    kv_params: dict[str, Any] | None = None
    """The reference to the kept blocks."""
    written: list[int] = field(default_factory=list)
    """The tokens of its whole answer, if a grammar writes it."""

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt.tokens)
        self.state = self.prompt.state
        self.contents = self.prompt.contents[: self.prompt.full_blocks]

    @property
    def generated(self) -> int:
        return len(self.tokens) - len(self.prompt)

    @property
    def left(self) -> int:
        """Tokens whose KV cache has yet to be computed; the last of them gives the next token."""
        return len(self.tokens) - self.computed

    def spoil(self, contents: list[int]) -> None:
        """Continue from a KV cache that does not belong to the tokens, so that other tokens
        follow."""
        self.sound = False
        self.state ^= crc32(pack(contents)) or 1


class Output(NamedTuple):
    """The result of a step for a sequence: a token, its end, or both."""

    sequence: Sequence
    token: int | None
    finish: str | None
    """stop, length, abort, error (its KV cache could not be loaded) or dead (the engine has
    failed)."""
    stop_reason: int | None = None


def next_token(sequence: Sequence) -> int:
    """The next token. `min_tokens` masks the end of sequence; `ignore_eos` does not."""
    if sequence.sampling.grammar is not None:
        return _next_written(sequence, sequence.sampling.grammar)
    may_end = sequence.generated >= sequence.sampling.min_tokens
    prompt = sequence.prompt
    if prompt.end_at is not None:
        if may_end and len(sequence.tokens) + 1 == prompt.end_at:
            return EOS
        may_end = False
    return prompt.language.choose(sequence.state, sequence.tokens[-1], end=may_end)


def _next_written(sequence: Sequence, grammar: Grammar) -> int:
    """The next token of an answer that a grammar writes; behind it only its end is admitted."""
    if not sequence.generated:
        # The state depends on the whole prompt, and on a wrong KV cache.
        sequence.written = encode(grammar(sequence.state))
    place = sequence.generated
    return sequence.written[place] if place < len(sequence.written) else EOS


def end_of(sequence: Sequence, token: int) -> tuple[str | None, int | None]:
    """Finish reason and stop reason after this token. Like vLLM's check_stop: first the end of
    sequence, then stop tokens, then the length."""
    sampling = sequence.sampling
    if sequence.generated >= sampling.min_tokens:
        if token == EOS and not sampling.ignore_eos:
            return "stop", None
        if token in sampling.stop_token_ids:
            return "stop", token
    return ("length", None) if sequence.generated >= sampling.max_tokens else (None, None)


_TO_FIRST = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_BETWEEN = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_WHOLE = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
"""vLLM's bucket bounds in seconds."""


class Histogram:
    """A histogram with Prometheus' buckets."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


@dataclass(slots=True)
class Counters:
    """Counters since the engine's start; of tokens unless the name says otherwise."""

    prompt: int = 0
    generated: int = 0
    computed_here: int = 0
    cached_here: int = 0
    external: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    external_queries: int = 0
    external_hits: int = 0

    finished: Counter[str] = field(default_factory=Counter)
    """Requests by finish reason."""
    adapters: dict[str, float] = field(default_factory=dict)
    """When each LoRA adapter last got a request, in seconds since the epoch."""
    rejected: int = 0
    """Requests refused because the queue was full."""
    preemptions: int = 0
    transfers: int = 0
    """Successful KV transfers, whether their content was right or wrong."""
    failed_transfers: int = 0
    wrong_transfers: int = 0
    """KV transfers of other blocks than the prompt's: their answers are garbage."""
    steps: int = 0

    to_first_token: Histogram = field(default_factory=lambda: Histogram(_TO_FIRST))
    between_tokens: Histogram = field(default_factory=lambda: Histogram(_BETWEEN))
    queued: Histogram = field(default_factory=lambda: Histogram(_WHOLE))
    whole: Histogram = field(default_factory=lambda: Histogram(_WHOLE))

    def admit(self, sequence: Sequence, now: float, *, looked_up: bool) -> None:
        """Count a sequence that was admitted for the first time. `looked_up`: it was looked up in
        the prefix cache."""
        sequence.admitted = now
        self.queued.observe(now - sequence.arrived)
        if looked_up:
            self.prefix_queries += len(sequence.prompt)
        self.prefix_hits += sequence.cached

    def look_elsewhere(self, sequence: Sequence, found: int) -> None:
        """Count the lookup of tokens outside the own cache, of which `found` are elsewhere."""
        self.external_queries += len(sequence.prompt) - sequence.cached
        self.external_hits += found

    def token(self, sequence: Sequence, now: float) -> None:
        """Count a token; with the first one also the prompt."""
        self.generated += 1
        if sequence.emitted is None:
            self.to_first_token.observe(now - sequence.arrived)
            self.prompt += len(sequence.prompt)
            self.cached_here += sequence.cached
            self.external += sequence.external
            self.computed_here += len(sequence.prompt) - sequence.cached - sequence.external
        else:
            self.between_tokens.observe(now - sequence.emitted)
        sequence.emitted = now

    def end(self, sequence: Sequence, finish: str, now: float) -> None:
        """Count a sequence that has ended by itself."""
        self.finished[finish] += 1
        self.whole.observe(now - sequence.arrived)
