"""What routing knows about a request."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from router.core.prefix.prompt_tokens import PromptTokens
from router.core.values import Endpoint, Route

__all__ = [
    "MAX_N",
    "NO_KEYS",
    "Destinations",
    "Facts",
    "PrefixKeys",
]


@dataclass(slots=True, unsafe_hash=True)  # reading a NamedTuple's fields takes ten times as long
class PrefixKeys:
    """The prefixes of a prompt. `keys[i]` identifies everything up to the end of chunk i; `ends[i]`
    is the estimated number of tokens up to there. Immutable."""

    keys: tuple[int, ...]
    ends: tuple[int, ...]


NO_KEYS: Final = PrefixKeys((), ())


class Destinations(NamedTuple):
    """The engines that a gateway has chosen for a request, in the order in which to try them."""

    prefill: tuple[Endpoint, ...]
    decode: tuple[Endpoint, ...]


MAX_N = 16_384
"""vLLM's limit of `n` (VLLM_MAX_N_SEQUENCES); it answers larger values with an error."""


NO_BODY: Final[Mapping[str, Any]] = MappingProxyType({})
"""The body of a request that is not a JSON object."""


@dataclass(slots=True, init=False)  # see CONTRIBUTING.md, "Compiled modules"
class Facts:
    """What routing needs to know about a request, from one parse of its body."""

    route: Route
    model: str | None
    stream: bool
    tokens: int
    """Estimated input tokens."""
    rule: str
    """The rule by which `tokens` was estimated."""
    direct_reason: str | None
    """Why this request must not be disaggregated, or None."""
    forces_tool: bool
    """Whether `tool_choice` requires a call: a prefill engine may refuse to make half of one."""
    raw: bytes = field(repr=False)
    """The body as bytes, without the keys that clients may not send."""
    body: Mapping[str, Any] = field(repr=False)
    """The same body parsed (read-only); empty for pass-through routes that are not JSON."""
    query: bytes
    """The query string, without its question mark."""
    text_bytes: int
    """UTF-8 bytes of the prompt's text; 0 if some of it is token ids."""
    learnable_bytes: int
    """The same if usage shows the tokens of this text alone, otherwise 0; see `TokenRatios`."""
    scale: float
    """The probable number of prompt tokens over the estimated number; see `TokenRatios`."""
    prefix: PrefixKeys | None = field(repr=False)
    """Keys of the prompt's prefixes; None until they are needed."""
    is_looked_up: bool
    """Whether `known_tokens` has been looked up."""
    known_tokens: PromptTokens | None = field(repr=False)
    """The prompt's token ids if they are known; only with --prefix-cache events."""
    lead: tuple[bytes | memoryview, ...] = field(repr=False)
    """For a large body: the pieces before `raw`."""
    prefill: tuple[bytes, ...] = field(repr=False)
    """For a body parsed by another process: the prefill request's body in pieces."""
    ids: bytes | None = field(repr=False)
    """For such a body: the packed token ids of the prompt, if the client sent ids."""
    has_media: bool
    """For such a body: whether the prompt contains more than text."""
    destinations: Destinations | None
    """The engines chosen by a gateway; None if the router chooses."""
    draw: float | None = field(repr=False)
    """A random number, 0 to 1, that selects the considered subset of a large pool; None until it is
    needed."""

    def __init__(
        self,
        route: Route,
        model: str | None,
        stream: bool,
        tokens: int,
        rule: str,
        direct_reason: str | None,
        raw: bytes,
        body: Mapping[str, Any] = NO_BODY,
        query: bytes = b"",
        text_bytes: int = 0,
        learnable_bytes: int = 0,
        scale: float = 1.0,
        prefix: PrefixKeys | None = None,
        is_looked_up: bool = False,
        known_tokens: PromptTokens | None = None,
        lead: tuple[bytes | memoryview, ...] = (),
        prefill: tuple[bytes, ...] = (),
        ids: bytes | None = None,
        has_media: bool = False,
        destinations: Destinations | None = None,
        draw: float | None = None,
        forces_tool: bool = False,
    ) -> None:
        self.route = route
        self.model = model
        self.stream = stream
        self.tokens = tokens
        self.rule = rule
        self.direct_reason = direct_reason
        self.forces_tool = forces_tool
        self.raw = raw
        self.body = body
        self.query = query
        self.text_bytes = text_bytes
        self.learnable_bytes = learnable_bytes
        self.scale = scale
        self.prefix = prefix
        self.is_looked_up = is_looked_up
        self.known_tokens = known_tokens
        self.lead = lead
        self.prefill = prefill
        self.ids = ids
        self.has_media = has_media
        self.destinations = destinations
        self.draw = draw

    @property
    def sequences(self) -> int:
        """Number of sequences that the engine generates concurrently: `n` for each prompt."""
        n, prompt = self.body.get("n"), self.body.get("prompt")
        if n is None and type(prompt) is not list:  # in most requests
            return 1
        prompts = 1
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
            prompts = len(prompt)
        return prompts * n if type(n) is int and 1 <= n <= MAX_N else prompts

    @property
    def path(self) -> str:
        """The request target for the engine."""
        return (
            f"{self.route.path}?{self.query.decode('latin-1')}" if self.query else self.route.path
        )
