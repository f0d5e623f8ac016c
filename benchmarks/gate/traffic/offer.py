"""The offered load: data set, pace and number of conversations.

Pure: data sets are already read. It makes the phases for the generator processes.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks.gate.traffic.load import Phase, Target
from benchmarks.gate.traffic.pace import UNLIMITED, Pace, RequestTemplate, lateness
from benchmarks.streaming.client import Seen


@dataclass(frozen=True, slots=True)
class Offer:
    """`conversations` of the measured phase; UNLIMITED where the duration ends it."""

    template: RequestTemplate
    pace: Pace
    conversations: int

    @property
    def fills_streams(self) -> bool:
        """Whether the requests in flight must equal the streams: in a closed loop without think
        times. Otherwise fewer are no sign of a client that is the limit."""
        return not (self.pace.open_loop or self.pace.ramp or self.template.dataset.thinks)

    def target(self, target: Target) -> Target:
        """The same endpoint with these conversations."""
        return replace(target, bodies=(), template=self.template)

    @property
    def requests(self) -> int | None:
        """About so many in the measured phase; None where the duration ends it."""
        if self.pace.duration is not None or self.conversations >= UNLIMITED:
            return None
        return round(self.conversations * self.template.dataset.mean_turns)

    @property
    def line(self) -> str:
        """The offered load, for display."""
        found, pace = self.template.dataset, self.pace
        parts = [f"{len(found.conversations)} conversations ({found.name})"]
        if found.longest > 1:
            parts.append(f"{found.mean_turns:g} turns on average")
        if pace.arrivals is not None:
            parts.append(f"{pace.arrivals.rate:g} begin per second ({pace.arrivals.pattern})")
        if pace.replay is not None:
            parts.append(f"at the trace's own times, {pace.replay:g} times as fast")
        if pace.duration is not None:
            parts.append(f"for {pace.duration:g} s")
        return f"{', '.join(parts)}, checksum {found.checksum[:16]}"

    def warmup(self, streams: int, requests: int, offset: int = 0) -> Phase:
        """A closed loop that begins at once, of the conversations from `offset` on."""
        count = -(-requests // math.ceil(self.template.dataset.mean_turns))
        return Phase(streams, count, offset, pace=Pace(seed=self.pace.seed))

    def phase(self, streams: int, offset: int, begin: float = 0.0) -> Phase:
        """The measured phase. A trace is replayed from its beginning."""
        offset = 0 if self.pace.replay is not None else offset
        return Phase(streams, self.conversations, offset, begin, self.pace)

    def concurrency(self, streams: int, reached: int) -> int:
        """The concurrency of a run: the streams if they must be filled; else the reached maximum,
        which is always met."""
        return streams if self.fills_streams else max(reached, 1)

    def notes(self, seen: Sequence[Seen], dropped: int = 0) -> list[str]:
        """Results besides the answers, for display."""
        found, late = [], lateness(seen)
        if late is not None:
            found.append(
                f"sent later than intended: p50 {late.p50_ms:.1f} ms, p99 {late.p99_ms:.1f} ms, "
                f"at most {late.max_ms:.1f} ms; latencies count from the intended time"
            )
        if dropped:
            found.append(
                f"due and not sent before the {self.pace.duration:g} s were over: {dropped} of "
                f"{len(seen) + dropped} requests"
            )
        if gone := sum(each.cancelled for each in seen):
            found.append(f"given up by their clients: {gone} of {len(seen)} requests")
        return found

    def report(self, seen: Sequence[Seen], dropped: int = 0) -> dict[str, Any]:
        """For the result: the offered load, its checksum, and its punctuality. JSON's types."""
        dataset, pace = self.template.dataset, self.pace
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
            "dropped": dropped,
            "cancelled": sum(each.cancelled for each in seen),
            "late": None if late is None else asdict(late),
        }


def conversations(requests: int | None, mean_turns: float) -> int:
    """So many that they come to about so many requests."""
    return UNLIMITED if requests is None else max(1, round(requests / mean_turns))
