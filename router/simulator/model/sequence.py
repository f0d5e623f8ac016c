"""One sequence of tokens on its way through an engine: what is asked of it and how far it is."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple
from zlib import crc32

from router.simulator.model.blocks import chain
from router.simulator.model.language import Language, forced_end
from router.simulator.model.tokenizer import pack


class Stage(Enum):
    """Where a sequence is."""

    NEW = auto()
    WAITING = auto()
    LOADING = auto()
    """Its blocks are taken and its KV cache is on the way."""
    READY = auto()
    """Its KV cache has come, or failed to."""
    RUNNING = auto()
    ENDED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """What a request says about its end."""

    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class RemoteRead:
    """A KV reference as a decode engine got it: where to read the prompt's blocks."""

    engine_id: object
    request_id: str
    host: str
    port: int
    blocks: list[int]
    params: Mapping[str, Any]

    @classmethod
    def parse(cls, params: Mapping[str, Any]) -> "RemoteRead | None":
        """None for parameters that would end a real engine with an assertion."""
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
    """A prompt and what follows from it; shared between the choices of a request."""

    tokens: list[int]
    language: Language
    state: int
    salt: int
    """Keeps apart what must not share a prefix cache: models and cache salts."""
    block_size: int
    contents: list[int]
    """What its blocks hold, the last one perhaps partly filled."""
    end_at: int | None
    """The length at which a marker in it forces the end of sequence."""
    owner: str = ""
    """What `salt` is a number for: the model's name, a NUL and the cache salt."""

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
    """A prompt and what has been generated for it."""

    request_id: str
    prompt: Prompt
    sampling: Sampling
    remote: RemoteRead | None = None
    keep: bool = False
    """Keep the blocks for a decode engine when it ends."""

    arrived: float = 0.0
    stage: Stage = Stage.NEW
    tokens: list[int] = field(init=False)
    state: int = field(init=False)
    blocks: list[int] = field(default_factory=list)
    contents: list[int] = field(init=False)
    """What its full blocks hold, or will hold once computed."""
    filled: int = 0
    """Blocks whose content is in place."""
    computed: int = 0
    """Tokens whose KV cache is there."""
    cached: int = 0
    """Prompt tokens found in the own prefix cache."""
    external: int = 0
    """Prompt tokens that came from another engine."""
    admitted: float | None = None
    emitted: float | None = None
    """When the last token came out."""
    sound: bool = True
    """Whether the KV cache is that of the tokens."""
    kv_params: dict[str, Any] | None = None
    """The reference to the blocks that are kept."""

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt.tokens)
        self.state = self.prompt.state
        self.contents = self.prompt.contents[: self.prompt.full_blocks]

    @property
    def generated(self) -> int:
        return len(self.tokens) - len(self.prompt)

    @property
    def left(self) -> int:
        """Tokens whose KV cache is still to be computed; the last of them gives the next token."""
        return len(self.tokens) - self.computed

    def spoil(self, contents: list[int]) -> None:
        """Go on from a KV cache that is not that of the tokens: other tokens will follow."""
        self.sound = False
        self.state ^= crc32(pack(contents)) or 1


class Output(NamedTuple):
    """What a step did for a sequence: a token, its end, or both."""

    sequence: Sequence
    token: int | None
    finish: str | None
    """stop, length, abort, error (its KV cache did not come) or dead (the engine is)."""
    stop_reason: int | None = None
