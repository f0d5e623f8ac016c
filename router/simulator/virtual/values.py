"""What a simulation is made of: frozen, and checked when it is made. Seconds and tokens."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from router.core.routing.patience import Patience
from router.core.values import Role
from router.simulator.model.batching import BatchModel

NEVER = 1 << 40
"""Prompt tokens that no prompt has."""

AUTO = -1
"""The threshold that follows the engines: `--routing-threshold auto`."""


def threshold_name(threshold: int) -> str:
    """A threshold as on the command line; empty if no prompt is prefilled remotely."""
    return "auto" if threshold == AUTO else "" if threshold == NEVER else str(threshold)


@dataclass(frozen=True, slots=True)
class EngineModel(BatchModel):
    """A continuously batching engine of a cluster in virtual time."""

    kv_tokens: int = 400_000
    """KV cache. A sequence reserves prompt and output when it is let in: nothing is preempted."""
    block_size: int = 0
    """Tokens of a KV block of its prefix cache; 0: it has none, and room is counted in tokens."""
    jitter: float = 0.02
    """A step's share of chance, up or down: real engines do not run in lockstep."""
    drift: float = 0.0
    """How much its speed varies from second to second: standard deviation of the logarithm."""
    is_on_grid: bool = False
    """Whether steps end at multiples of their length, as those of an engine with one timer do."""
    has_gauges: bool = True
    """Whether its gauges can be read."""
    first_token_seconds: float = 0.0
    """From a request's arrival to its first token, at least; that comes at the next step's end."""


@dataclass(frozen=True, slots=True)
class Speed:
    """From `at` on each step of the engine takes `factor` times as long."""

    at: float
    engine: int
    factor: float


@dataclass(frozen=True, slots=True)
class Freeze:
    """The engine does nothing for `seconds`, then goes on where it was; it goes on accepting."""

    at: float
    engine: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Restart:
    """The engine is killed: its connections break, and for `seconds` it refuses new ones."""

    at: float
    engine: int
    seconds: float
    max_num_seqs: int | None = None
    """What it is started with then; None: as before."""


@dataclass(frozen=True, slots=True)
class Faults:
    """From `at` on these shares of the engine's requests go wrong, each 0 to 1: of all, or of those
    for one model or with one prompt only."""

    at: float
    engine: int
    refused: float = 0.0
    """The connection is refused."""
    failed: float = 0.0
    """The answer is a 500."""
    broken: float = 0.0
    """The stream breaks after its first token."""
    model: str | None = None
    """Requests for this model only; None: for any."""
    is_poison_only: bool = False
    """Whether only requests with the workload's `poison` go wrong."""

    def may_meet(self, model: str | None, *, is_poison: bool) -> bool:
        """Whether a request for this model may go wrong."""
        return self.model in (None, model) and (is_poison or not self.is_poison_only)


@dataclass(frozen=True, slots=True)
class Unread:
    """For `seconds` clients read nothing: this share, 0 to 1, of those with a stream on the
    engine. It generates on, at its own pace."""

    at: float
    engine: int
    seconds: float
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class RouterRestart:
    """A router replica loses its connections and all that it knows, and is back at once."""

    at: float
    replica: int


Change = Speed | Freeze | Restart | Faults | Unread | RouterRestart


@dataclass(frozen=True, slots=True)
class Lengths:
    """Prompt or output lengths in tokens: all `median`, or lognormal around it."""

    median: int
    sigma: float = 0.0
    """Of the logarithm; 0: all alike."""
    most: int = 1 << 30

    def draw(self, rng: Random) -> int:
        """One length, at least 1."""
        if not self.sigma:
            return self.median
        return min(self.most, max(1, round(self.median * math.exp(rng.gauss(0.0, self.sigma)))))

    @property
    def mean(self) -> float:
        """Of the distribution, without its limits."""
        return self.median * math.exp(self.sigma**2 / 2)


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One engine of a pool."""

    model: EngineModel
    role: Role = Role.DECODE
    serves: tuple[str, ...] = ()
    """The models that it lists; none: it does not say, and gets any request."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds of patience with an engine: the defaults of router/settings/groups/timeouts.py."""

    prefill: float = 120.0
    first_byte: float = 600.0
    idle: float = 120.0

    @property
    def whole(self) -> Patience:
        """With a reply of a prefill engine."""
        return Patience(self.prefill)

    @property
    def stream(self) -> Patience:
        """With an answer to a client."""
        return Patience(self.first_byte, self.idle)


@dataclass(frozen=True, slots=True)
class Turn:
    """A request whose KV blocks are known; see `Attempt.contents`."""

    prompt: int
    output: int
    contents: tuple[int, ...] = ()
    pause: float = 0.0
    """Seconds from the end of the turn before."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Closed loops, bursts and an open loop: streams that ask again as soon as they have their
    answer, many requests at once now and then, and requests that come whatever happens."""

    requests: int
    """In all; the run ends when each has ended."""
    streams: int
    prompt: Lengths
    output: Lengths
    burst_seconds: float = 0.0
    """Between two bursts; 0: none."""
    burst_requests: int = 0
    rate: float = 0.0
    """Requests per second of the open loop, which is a Poisson process; 0: none."""
    models: tuple[str, ...] = ()
    """What the requests ask for in turn; none: they name no model."""
    held_share: float = 0.0
    """Share of the requests, 0 to 1, whose tokens are held back and come with the last one, as
    vLLM's parsers of tool calls do."""
    shows_first: bool = True
    """Whether the first token of these comes at once."""
    held_output: Lengths | None = None
    """What these generate; None: as the others."""
    is_unary: bool = False
    """Whether answers come whole, not as streams."""
    poison: Turn | None = None
    """A prompt that is sent again and again, see `Faults.is_poison_only`."""
    poison_share: float = 0.0
    """Share of the requests, 0 to 1, that have it."""


@dataclass(frozen=True, slots=True)
class Session:
    """Requests of one client, each after the answer to the one before."""

    at: float
    """When the first one comes, whatever happens."""
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Scenario:
    """Engines, clients, routers, and what goes wrong when."""

    name: str
    engines: int
    model: EngineModel
    workload: Workload
    replicas: int = 1
    changes: tuple[Change, ...] = field(default=())
    specs: tuple[EngineSpec, ...] = ()
    """Each engine by itself; none: all are decode engines of `model`."""
    threshold: int = NEVER
    """Prompt tokens from which a prompt is prefilled on another engine; or `AUTO`."""
    max_itl_impact: float = 2.0
    """`--max-itl-impact`, for `AUTO`."""
    transfer_tokens_per_second: float = 80_000.0
    """Of a KV cache between two engines: 147 kB per token over 100 Gbit/s."""
    transfer_seconds: float = 0.0
    """What each transfer takes beside that."""
    timeouts: Timeouts = field(default=Timeouts())
    sessions: tuple[Session, ...] = field(default=(), repr=False)
    """Requests beside those of the workload, which counts them in its `requests`."""
    has_peers: bool = False
    """Whether the replicas tell each other of their requests and prompts, as by `--peers`."""
    has_workers: bool = False
    """Whether the replicas are the worker processes of one router, as by `--workers`."""

    @property
    def pool(self) -> tuple[EngineSpec, ...]:
        """Every engine."""
        return self.specs or (EngineSpec(self.model),) * self.engines

    def __post_init__(self) -> None:
        """Raises ValueError for what could never end."""
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
        """The most tokens of the workload's requests, and those of each request of a session."""
        work = self.workload
        lengths = (work.prompt, work.output)
        yield sum(each.most if each.sigma else each.median for each in lengths)
        if work.poison is not None:
            yield work.poison.prompt + work.poison.output
        for session in self.sessions:
            yield from (turn.prompt + turn.output for turn in session.turns)
