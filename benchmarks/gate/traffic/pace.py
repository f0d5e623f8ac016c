"""How a phase is offered, where it is more than a closed loop that begins at once.

Pure nouns sent to the generator processes, and the outcome of the intended times.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from benchmarks.gate.inputs.datasets import Conversation, Dataset
from benchmarks.gate.traffic.arrivals import Arrivals, Times, replayed, share, times
from benchmarks.gate.traffic.cancellations import Cancellations
from benchmarks.streaming.client import Seen

# Of conversations, where only the duration ends a phase.
UNLIMITED = sys.maxsize


@dataclass(frozen=True, slots=True)
class RequestTemplate:
    """What is sent: conversations of a data set, and the fields that all bodies have in common."""

    dataset: Dataset
    model: str
    output_tokens: int = 128
    temperature: float = 0.0
    extra: Mapping[str, Any] = field(default_factory=dict)

    def body(self, conversation: Conversation, turn: int, answers: Sequence[str] = ()) -> bytes:
        """The request of one turn, in the order of AIPerf's fields."""
        tokens = conversation.turns[turn].output_tokens
        whole = self.temperature == int(self.temperature)
        return orjson.dumps(
            {
                "messages": conversation.messages(turn, answers),
                "model": self.model,
                "stream": True,
                "max_completion_tokens": self.output_tokens if tokens is None else tokens,
                # As AIPerf writes it: 0, not 0.0.
                "temperature": int(self.temperature) if whole else self.temperature,
                "stream_options": {"include_usage": True},
                **self.extra,
            }
        )


@dataclass(frozen=True, slots=True)
class Pace:
    """When conversations begin and when requests are given up.

    Open loop: with `arrivals`, or with `replay`, the speed at which a data set's own times pass;
    at most `cap` requests are then in flight in total; due ones wait. Otherwise a closed
    loop, whose streams begin one after the other over `ramp` seconds. After `duration` seconds no
    request starts: those in flight finish, those that wait for the cap are dropped.
    `keep` keeps the answers' texts.
    """

    arrivals: Arrivals | None = None
    replay: float | None = None
    cap: int | None = None
    ramp: float = 0.0
    duration: float | None = None
    cancel: Cancellations = field(default_factory=Cancellations)
    seed: int = 0
    keep: bool = False

    @property
    def open_loop(self) -> bool:
        """Requests start at their times, independent of the end of others."""
        return self.arrivals is not None or self.replay is not None

    def cap_of(self, part: int, parts: int) -> int:
        """One process's share of the cap: at least one, or requests of its turn would never be
        sent."""
        if self.cap is None:
            return UNLIMITED
        return max(self.cap // parts + (part < self.cap % parts), 1)

    def schedule(
        self, dataset: Dataset, conversations: int, offset: int, part: int, parts: int
    ) -> Times:
        """When one process begins its conversations, whose numbers are part, part + parts, ..."""
        if self.arrivals is not None:
            count = None if conversations >= UNLIMITED else conversations
            found = times(self.arrivals, self.seed, count=count, duration=self.duration)
        else:
            found = self._replayed(dataset, conversations, offset)
        return share(found, part, parts)

    def _replayed(self, dataset: Dataset, conversations: int, offset: int) -> Times:
        """A trace does not begin again where it ends."""
        stamps = (dataset.stamps or ())[offset : offset + conversations]
        found = replayed(stamps, self.replay or 1.0)
        return found if self.duration is None else found[found < self.duration]


@dataclass(frozen=True, slots=True)
class Lateness:
    """How much later than intended requests were sent, over all that had an intended time: by the
    cap, or because the client was the limit. Milliseconds."""

    requests: int
    p50_ms: float
    p99_ms: float
    max_ms: float


def lateness(seen: Sequence[Seen]) -> Lateness | None:
    """None without intended times."""
    late = [each.late * 1e3 for each in seen if each.late is not None]
    if not late:
        return None
    p50, p99 = np.percentile(late, (50, 99)).tolist()
    return Lateness(len(late), p50, p99, max(late))
