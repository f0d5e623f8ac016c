"""The loads and the units that are counted with them.

Pure. A unit's cost is the difference of two loads of the same kind, divided by the difference of
their units: one-time costs of a load are not in it.
"""

from dataclasses import asdict, dataclass, replace

import orjson

from benchmarks.loadgen.plan import Plan, requests

PROMPT_BYTES = 1000
LARGE_PROMPT_BYTES = 240_000
CHARACTERS_PER_TOKEN = 4
# Beside the chunks between them, a stream has a first and a last token.
ENDS = 2


@dataclass(frozen=True)
class Load:
    """Requests one after the other, on `together` connections at once.

    A stream reaches the router in `chunks` + 2 reads: its head with the role and the first token,
    one read per chunk, and its end (last token, usage, `[DONE]`).
    """

    requests: int
    stream: bool = False
    chunks: int = 0
    prompt_bytes: int = PROMPT_BYTES
    together: int = 1
    is_new: bool = False
    """Whether each prompt begins with its own number, so that no engine has any of it cached.
    Otherwise all are the same."""

    @property
    def tokens(self) -> int:
        """Tokens per answer."""
        return self.chunks + ENDS

    def encode(self) -> str:
        """As one line."""
        return orjson.dumps(asdict(self)).decode()

    @classmethod
    def decode(cls, text: str) -> "Load":
        """The inverse of `encode`."""
        return cls(**orjson.loads(text))

    def request(self, number: int = 0) -> bytes:
        """The bytes of a request."""
        plan = Plan(
            targets=(),
            clients=1,
            tokens=self.tokens,
            stream=self.stream,
            prompt_bytes=self.prompt_bytes,
            ramp_s=0.0,
            window_s=0.0,
            drain_s=0.0,
        )
        request = requests(plan)[0]
        # The length stays.
        return request.replace(b"The quick", b"%09d" % number, 1) if self.is_new else request


@dataclass(frozen=True)
class Unit:
    """What is counted: the difference of the two loads holds `units` of it."""

    key: str
    title: str
    smaller: Load
    larger: Load
    units: int
    two_legs: bool = False


def per_request(key: str, title: str, load: Load, requests: int, **more: bool) -> Unit:
    """The cost of a request: `load` against the same with more requests."""
    units = requests - load.requests
    return Unit(key, title, load, replace(load, requests=requests), units, **more)


def per_chunk(key: str, title: str, load: Load, chunks: int) -> Unit:
    """The cost of a chunk: `load` against longer streams."""
    units = (chunks - load.chunks) * load.requests
    return Unit(key, title, load, replace(load, chunks=chunks), units)


def per_prompt(tokens: int, smaller: int, larger: int, *, is_new: bool) -> Unit:
    """The cost of a unary request with so long a prompt, which is new or comes again."""
    load = Load(smaller, prompt_bytes=CHARACTERS_PER_TOKEN * tokens, is_new=is_new)
    kind, title = ("new", "new prompt") if is_new else ("again", "the same prompt again")
    key = f"{kind}-{tokens // 1000}k"
    return per_request(key, f"{title}, {tokens:,} tokens, unary", load, larger)


# What CI compares with the stored figures.
GUARDED = (
    per_request("unary", "unary request", Load(40), 120),
    per_request("stream", "streamed request, two reads", Load(40, stream=True), 120),
    per_chunk("chunk", "chunk of one stream", Load(1, stream=True, chunks=500), 4500),
    per_chunk(
        "step",
        "chunk of 16 streams in step",
        Load(16, stream=True, chunks=20, together=16),
        160,
    ),
    per_request("large", "240 kB prompt, unary", Load(10, prompt_bytes=LARGE_PROMPT_BYTES), 40),
    per_request(
        "pd", "two legs (NIXL), streamed, two reads", Load(40, stream=True), 120, two_legs=True
    ),
)
# The longest new ones come first: they fill what a router remembers of 8 engines (500,000 tokens
# each), so that it forgets as much as it learns in all that follow.
PROMPTS = (
    *(
        per_prompt(tokens, smaller, larger, is_new=True)
        for tokens, smaller, larger in ((100_000, 8, 48), (16_000, 20, 80), (1_000, 40, 120))
    ),
    *(
        per_prompt(tokens, smaller, larger, is_new=False)
        for tokens, smaller, larger in ((100_000, 5, 20), (16_000, 10, 40), (1_000, 40, 120))
    ),
)
UNITS = {unit.key: unit for unit in (*GUARDED, *PROMPTS)}
