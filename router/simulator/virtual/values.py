"""The values that define a simulation: frozen, and validated on construction. In seconds and
tokens."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from router.core.routing.engine_timeouts import EngineTimeouts
from router.core.values import Role
from router.simulator.model.batching import BatchModel

NEVER = 1 << 40
"""More prompt tokens than any prompt has."""

AUTO = -1
"""The adaptive threshold: `--routing-threshold auto`."""


def threshold_name(threshold: int) -> str:
    """A threshold as on the command line; empty if no prompt is prefilled remotely."""
    return "auto" if threshold == AUTO else "" if threshold == NEVER else str(threshold)


@dataclass(frozen=True, slots=True)
class EngineModel(BatchModel):
    """A continuously batching engine of a cluster in virtual time."""

    kv_tokens: int = 400_000
    """Size of the KV cache. A sequence reserves prompt and output when it is admitted, so nothing
    is preempted."""
    block_size: int = 0
    """Tokens per block of its prefix cache; 0: it has no prefix cache, and room is counted in
    tokens."""
    jitter: float = 0.02
    """Random variation of a step, as a share: real engines do not run in lockstep."""
    drift: float = 0.0
    """Variation of its speed from second to second: standard deviation of the logarithm."""
    is_on_grid: bool = False
    """Whether steps end at multiples of their duration, as with a single timer."""
    has_gauges: bool = True
    """Whether its gauges can be read."""
    first_token_seconds: float = 0.0
    """Shortest time in seconds from a request's arrival to its first token, which comes at the end
    of the next step."""


@dataclass(frozen=True, slots=True)
class Speed:
    """From `at` on, each step of the engine takes `factor` times as long."""

    at: float
    engine: int
    factor: float


@dataclass(frozen=True, slots=True)
class Freeze:
    """The engine does nothing for `seconds` except accept requests, then continues."""

    at: float
    engine: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Restart:
    """The engine is killed: its connections break, and it refuses new ones for `seconds`."""

    at: float
    engine: int
    seconds: float
    max_num_seqs: int | None = None
    """New number of slots; None: unchanged."""


@dataclass(frozen=True, slots=True)
class FaultRates:
    """From `at` on these shares of the engine's requests fail, each 0 to 1; only those for one
    model or with one prompt, if given."""

    at: float
    engine: int
    refused: float = 0.0
    """The connection is refused."""
    failed: float = 0.0
    """The answer is a 500."""
    broken: float = 0.0
    """The stream breaks after its first token."""
    model: str | None = None
    """Only requests for this model; None: any."""
    is_poison_only: bool = False
    """Only requests with the workload's `poison`."""

    def may_meet(self, model: str | None, *, is_poison: bool) -> bool:
        """Whether a request for this model may fail."""
        return self.model in (None, model) and (is_poison or not self.is_poison_only)


@dataclass(frozen=True, slots=True)
class Unread:
    """For `seconds` this share, 0 to 1, of the clients with a stream on the engine read nothing.
    The engine continues to generate at its own pace."""

    at: float
    engine: int
    seconds: float
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class RouterRestart:
    """A router replica loses its connections and its state, and is back immediately."""

    at: float
    replica: int


Change = Speed | Freeze | Restart | FaultRates | Unread | RouterRestart


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of prompts or outputs in tokens: all `median`, or lognormally distributed around
    it."""

    median: int
    sigma: float = 0.0
    """Standard deviation of the logarithm; 0: all are equal."""
    most: int = 1 << 30

    def draw(self, rng: Random) -> int:
        """Draw a length of at least 1."""
        if not self.sigma:
            return self.median
        return min(self.most, max(1, round(self.median * math.exp(rng.gauss(0.0, self.sigma)))))

    @property
    def mean(self) -> float:
        """Mean of the distribution, without its limits."""
        return self.median * math.exp(self.sigma**2 / 2)


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One engine of a pool."""

    model: EngineModel
    role: Role = Role.DECODE
    serves: tuple[str, ...] = ()
    """The models that it lists; empty: it lists none, and gets any request."""
    zone: str | None = None


PREFILL_TIMEOUTS = EngineTimeouts(120.0)
"""For a reply of a prefill engine, as by default in router/settings/fields.py."""

TIMEOUTS = EngineTimeouts(600.0, 120.0)
"""For an answer to a client, as by default there."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A request with known KV blocks; see `Attempt.contents`."""

    prompt: int
    output: int
    contents: tuple[int, ...] = ()
    pause: float = 0.0
    """Seconds from the end of the previous turn."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Closed loops, bursts and an open loop: streams that send their next request after each
    answer, many requests at once at intervals, and requests that arrive independently."""

    requests: int
    """Number of all requests; the run ends when all have ended."""
    streams: int
    prompt: Lengths
    output: Lengths
    burst_seconds: float = 0.0
    """Seconds between bursts; 0: none."""
    burst_requests: int = 0
    rate: float = 0.0
    """Requests per second of the open loop (a Poisson process); 0: none."""
    models: tuple[str, ...] = ()
    """Models that the requests name in turn; empty: none is named."""
    held_share: float = 0.0
    """Share of the requests, 0 to 1, whose tokens are held back until the last one, as vLLM's tool
    call parsers do."""
    shows_first: bool = True
    """Whether the first token of these is sent at once."""
    held_output: Lengths | None = None
    """Output lengths of these; None: the same as others."""
    is_unary: bool = False
    """Whether answers are unary."""
    poison: Turn | None = None
    """A prompt that is sent repeatedly, see `FaultRates.is_poison_only`."""
    poison_share: float = 0.0
    """Share of the requests, 0 to 1, with this prompt."""


@dataclass(frozen=True, slots=True)
class Session:
    """Requests of one client, each sent after the answer to the previous one."""

    at: float
    """When the first one is sent, in any case."""
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Scenario:
    """Engines, clients and routers, and the events that disturb them."""

    name: str
    engines: int
    model: EngineModel
    workload: Workload
    replicas: int = 1
    changes: tuple[Change, ...] = field(default=())
    specs: tuple[EngineSpec, ...] = ()
    """The engines; empty: all are decode engines of `model`."""
    threshold: int = NEVER
    """Prompt tokens from which a prompt is prefilled on another engine, or `AUTO`."""
    continues: bool = False
    """Whether streams go on with other engines (`--stream-continuation`)."""
    max_itl_impact: float = 2.0
    """`--max-itl-impact`, for `AUTO`."""
    transfer_tokens_per_second: float = 80_000.0
    """Speed of a KV transfer between two engines: 147 kB per token over 100 Gbit/s."""
    transfer_seconds: float = 0.0
    """Fixed time of each transfer in seconds."""
    crossing_factor: float = 1.0
    """How many times as long transfers between zones take."""
    timeouts: EngineTimeouts = TIMEOUTS
    """Of answers to clients."""
    sessions: tuple[Session, ...] = field(default=(), repr=False)
    """Requests in addition to those of the workload, whose `requests` includes them."""
    slo_ttft: float | None = None
    """Seconds within which a first token counts as in time; None: it is not counted."""
    has_deadlines: bool = False
    """Whether requests that are expected to miss it are refused (`--request-deadlines`)."""
    has_peers: bool = False
    """Whether the replicas report their requests and prompts to each other (`--peers`)."""
    has_workers: bool = False
    """Whether the replicas are the worker processes of one router (`--workers`)."""

    @property
    def pool(self) -> tuple[EngineSpec, ...]:
        """All engines."""
        return self.specs or (EngineSpec(self.model),) * self.engines

    def __post_init__(self) -> None:
        """Raises ValueError for scenarios that could never end."""
        work = self.workload
        if min(self.engines, self.replicas, work.requests) < 1 or (
            work.streams < 1 and not work.rate and not self.sessions
        ):
            raise ValueError("engines, replicas, streams and requests must be at least 1")
        if len(self.pool) != self.engines:
            raise ValueError("there must be a spec for each engine")
        if self.has_peers and self.has_workers:
            raise ValueError("the workers of one router are no peers")
        longest = max(self._lengths)
        models = [spec.model for spec in self.pool]
        if longest > min(
            model.kv_tokens - model.kv_tokens % (model.block_size or 1) for model in models
        ):
            raise ValueError(f"a request of {longest} tokens does not fit in the KV cache")
        if self.sessions and len({model.block_size for model in models}) > 1:
            raise ValueError("the engines' blocks must be of one size, that of the sessions'")
        self._check_poison()
        self._check_changes()
        served = {model for spec in self.pool for model in spec.serves}
        if served and not set(work.models) <= served:
            raise ValueError("a model is asked for that no engine serves")

    def _check_changes(self) -> None:
        for change in self.changes:
            if isinstance(change, RouterRestart):
                if change.replica >= self.replicas:
                    raise ValueError("a change names a replica that is not there")
            elif change.engine >= self.engines:
                raise ValueError("a change names an engine that is not there")

    def _check_poison(self) -> None:
        poison = self.workload.poison
        has_caches = all(spec.model.block_size for spec in self.pool)
        if poison is not None and poison.contents and not has_caches:
            raise ValueError("a prompt's blocks are known to engines with prefix caches only")

    @property
    def _lengths(self) -> Iterator[int]:
        """Yields the most tokens of a workload's request, and the tokens of each request of a
        session."""
        work = self.workload
        lengths = (work.prompt, work.output)
        yield sum(each.most if each.sigma else each.median for each in lengths)
        if work.poison is not None:
            yield work.poison.prompt + work.poison.output
        for session in self.sessions:
            yield from (turn.prompt + turn.output for turn in session.turns)
