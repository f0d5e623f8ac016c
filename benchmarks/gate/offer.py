"""The load that is offered, put together: what is asked, at which pace, how many conversations.

Pure: data sets are read by then. It makes the phases that the generator processes are told of. It
refuses to know the command line, and what the answers are worth.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks.gate.generator import Seen
from benchmarks.gate.load import Phase, Target
from benchmarks.gate.pace import UNLIMITED, Asks, Pace, lateness


@dataclass(frozen=True, slots=True)
class Offer:
    """`conversations` of the measured phase; UNLIMITED where the duration ends it."""

    asks: Asks
    pace: Pace
    conversations: int

    @property
    def fills_streams(self) -> bool:
        """Whether as many requests as there are streams are to be in flight: in a closed loop in
        which nobody thinks. Elsewhere fewer are no sign of a client that is the limit."""
        return not (self.pace.open_loop or self.pace.ramp or self.asks.dataset.thinks)

    def target(self, target: Target) -> Target:
        """The same endpoint, asked these conversations."""
        return replace(target, bodies=(), asks=self.asks)

    def warmup(self, streams: int, requests: int) -> Phase:
        """A closed loop that begins at once, of the data set's first conversations."""
        count = -(-requests // math.ceil(self.asks.dataset.mean_turns))
        return Phase(streams, count, 0, pace=Pace(seed=self.pace.seed))

    def phase(self, streams: int, offset: int, begin: float = 0.0) -> Phase:
        """The measured phase. A trace is replayed from its beginning whatever came before."""
        offset = 0 if self.pace.replay is not None else offset
        return Phase(streams, self.conversations, offset, begin, self.pace)

    def report(self, seen: Sequence[Seen]) -> dict[str, Any]:
        """For the result: what was offered, its checksum, and how it was kept to. JSON's types."""
        dataset, pace = self.asks.dataset, self.pace
        late = lateness(seen)
        return {
            "dataset": dataset.name,
            "conversations": len(dataset.conversations),
            "checksum": dataset.checksum,
            "tokens_counted_by": dataset.counted_by,
            "mean_turns": dataset.mean_turns,
            "loop": "open" if pace.open_loop else "closed",
            "arrivals": None if pace.arrivals is None else asdict(pace.arrivals),
            "replay_speed": pace.replay,
            "max_in_flight": pace.cap,
            "ramp": pace.arrivals.ramp if pace.arrivals is not None else pace.ramp,
            "duration": pace.duration,
            "begun": len(seen),
            "cancelled": sum(each.cancelled for each in seen),
            "late": None if late is None else asdict(late),
        }


def conversations(requests: int | None, mean_turns: float) -> int:
    """So many that they come to about so many requests."""
    return UNLIMITED if requests is None else max(1, round(requests / mean_turns))
