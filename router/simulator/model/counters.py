"""An engine's counters as plain numbers, for /metrics and /sim/state."""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from router.simulator.model.sequence import Sequence

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
