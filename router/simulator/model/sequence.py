"""One sequence in an engine: what was requested and its progress."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple
from zlib import crc32

from router.simulator.model.blocks import chain
from router.simulator.model.language import Language, forced_end
from router.simulator.model.tokenizer import pack


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
    host: str
    port: int
    blocks: list[int]
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
