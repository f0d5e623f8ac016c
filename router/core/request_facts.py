"""What routing knows about a request."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from struct import iter_unpack
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from router.core.values import Endpoint, Route

__all__ = [
    "DEFAULT_IMAGE_RULE",
    "ID_BYTES",
    "MAX_N",
    "NO_BODY",
    "NO_KEYS",
    "Destinations",
    "Facts",
    "ImageRule",
    "ImageRules",
    "PrefixKeys",
    "PromptTokens",
    "root_key",
    "session_keys",
]


@dataclass(slots=True, unsafe_hash=True)  # reading a NamedTuple's fields takes ten times as long
class PrefixKeys:
    """The prefixes of a prompt. `keys[i]` identifies everything up to the end of chunk i; `ends[i]`
    is the estimated number of tokens up to there. Immutable."""

    keys: tuple[int, ...]
    ends: tuple[int, ...]


NO_KEYS: Final = PrefixKeys((), ())


def session_keys(name: bytes) -> PrefixKeys:
    """The key of a session, which the engines that serve it hold like a prompt without tokens."""
    return PrefixKeys((hash(("session", name)),), (0,))


ID_BYTES: Final = 4
"""Bytes of a token id, packed as `array("I")`."""

KEYS_AT_A_TIME: Final = 32
"""Block keys that are computed at a time; few prompts are held up to their end."""


def root_key(lora: str | None) -> int:
    """The key before a prompt's first block. It differs by adapter, because adapters do not share
    blocks."""
    return hash(("prompt", lora))


class PromptTokens:
    """The ids of the beginning of a prompt, with its adapter and cache salt (None without)."""

    __slots__ = ("_keys", "_lora", "_salt", "count", "data", "estimated", "is_whole")

    def __init__(
        self, data: bytes, estimated: int, lora: str | None, salt: str | None, *, is_whole: bool
    ) -> None:
        self.data = data
        """The packed ids, `ID_BYTES` each."""
        self.count = len(data) // ID_BYTES
        self.estimated = estimated
        """The estimated tokens of the same part of the prompt."""
        self.is_whole = is_whole
        """Whether these are all ids of the prompt."""
        self._lora = lora
        self._salt = salt
        self._keys: dict[int, list[int]] = {}

    def keys(self, block_size: int) -> Iterator[int]:
        """Yields the keys of its full blocks of this size, computed once each. Engines always
        compute a prompt's last token, so the block that it would fill is not included."""
        found = self._keys.setdefault(block_size, [])
        blocks = (self.count - self.is_whole) // block_size
        start = 0
        while True:
            yield from found[start:]
            start = len(found)
            if start >= blocks:
                return
            self._add_keys(found, block_size, min(blocks, start + KEYS_AT_A_TIME))

    def _add_keys(self, found: list[int], block_size: int, end: int) -> None:
        """Compute the keys up to the block that ends at `end`."""
        step, start = ID_BYTES * block_size, len(found)
        pieces = iter_unpack(f"{step}s", self.data[step * start : step * end])
        key = found[-1] if found else root_key(self._lora)
        if not found and self._salt is not None:  # it only applies to the first block
            key = hash((key, *next(pieces), (self._salt,)))
            found.append(key)
        append = found.append
        for (ids,) in pieces:
            key = hash((key, ids))
            append(key)

    def as_estimated(self, tokens: int) -> int:
        """Convert a number of its actual tokens to estimated ones."""
        return tokens * self.estimated // self.count if self.count else 0


class ImageRule(NamedTuple):
    """The tokens of a model's images."""

    each: int
    """Of each image; 0: they depend on its size."""
    pixels: int
    """Pixels that are one token."""


ImageRules = Mapping[str, ImageRule]
"""By the name that clients give to a model, its alias if it has one."""

DEFAULT_IMAGE_RULE: Final = ImageRule(0, 28 * 28)
"""Of Qwen2.5-VL and Mistral Small 3.1: patches of 14 x 14 pixels, merged by 2 x 2."""


class Destinations(NamedTuple):
    """The engines that a gateway has chosen for a request, in the order in which to try them."""

    prefill: tuple[Endpoint, ...]
    decode: tuple[Endpoint, ...]


MAX_N = 16_384
"""vLLM's limit of `n` (VLLM_MAX_N_SEQUENCES); it answers larger values with an error."""


NO_BODY: Final[Mapping[str, Any]] = MappingProxyType({})
"""The body of a request that is not a JSON object."""


class Facts:
    """What routing needs to know about a request, from one parse of its body."""

    forces_tool: bool = False
    """Whether `tool_choice` requires a call: a prefill engine may refuse to make half of one."""
    learnable_bytes: int = 0
    """`text_bytes` if usage shows the tokens of this text alone, otherwise 0; see
    `tokens.learnable_bytes`."""
    media_tokens: int = 0
    """The part of `tokens` that is images, recordings and videos."""
    image_rule: ImageRule = DEFAULT_IMAGE_RULE
    """What `media_tokens` follows for images."""
    scale: float = 1.0
    """The probable number of prompt tokens over the estimated number; see `TokenRatios`."""
    prefix: PrefixKeys | None = None
    """Keys of the prompt's prefixes; None until they are needed."""
    is_looked_up: bool = False
    """Whether `known_tokens` has been looked up."""
    known_tokens: PromptTokens | None = None
    """The prompt's token ids if they are known; only with --prefix-cache events."""
    lead: tuple[bytes | memoryview, ...] = ()
    """For a large body: the pieces before `raw`."""
    prefill: tuple[bytes, ...] = ()
    """For a body parsed by another process: the prefill request's body in pieces."""
    ids: bytes | None = None
    """For such a body: the packed token ids of the prompt, if the client sent ids."""
    has_media: bool = False
    """For such a body: whether the prompt contains more than text."""
    media: dict[int, bytes] | None = None
    """For such a body: its images and the like as JSON, by a hash; empty if nothing needs them."""
    tried: frozenset[Endpoint] = frozenset()
    """The decode engines that have failed a stream which another one continues."""
    prompt_ids: bytes = b""
    """For a chat's stream that is continued: the JSON list of its token ids so far. Engines get it
    in the KV parameters."""
    destinations: Destinations | None = None
    """The engines chosen by a gateway; None if the router chooses."""
    names_keeper: bool = False
    """Whether the id of its response names the decode engine, which keeps the response."""
    alias: str | None = None
    """The name by which the client asked for the model, if it is an alias."""
    draw: float | None = None
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
    ) -> None:
        self.route = route
        self.session: PrefixKeys | None = None
        """The key of the request's session; None without `--session-header`."""
        self.model = model
        self.stream = stream
        self.tokens = tokens
        """Estimated input tokens."""
        self.rule = rule
        """The rule by which `tokens` was estimated."""
        self.direct_reason = direct_reason
        """Why this request must not be disaggregated, or None."""
        self.raw = raw
        """The body as bytes, without the keys that clients may not send."""
        self.body = body
        """The same body parsed (read-only); empty for pass-through routes that are not JSON."""
        self.query = query
        """The query string, without its question mark."""
        self.text_bytes = text_bytes
        """UTF-8 bytes of the prompt's text; 0 if some of it is token ids."""

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
