"""Whether the machine was too slow for a scenario to show anything.

The engines run in the test's event loop and the routers in processes of their own. While one of
these waits for a processor core its engines really are slow, or its router really judges late.
"""

import asyncio
from dataclasses import dataclass
from typing import Self

from prometheus_client.parser import text_string_to_metric_families

__all__ = ["LATE_S", "LATE_SHARE", "LOOK_S", "Lateness", "MachineTooSlow", "RouterLateness"]

LATE_S = 0.2
"""Seconds by which a loop is late on a machine that is too slow: five steps of an engine, and most
of a tick of the router's judgement."""

LATE_SHARE = 0.1
"""The same for the sum of all delays, as a share of the time: engines of different speeds get
measurably more alike, because a delay lengthens the steps of all of them."""

LOOK_S = 0.05
"""Seconds between two looks at the time."""

LAG_BUCKET_S = "0.25"
"""The router's own bucket next to LATE_S."""


class MachineTooSlow(Exception):
    """A scenario failed, but a router's process was late."""


class Lateness:
    """How late this event loop is."""

    def __init__(self) -> None:
        self.most = 0.0
        """Seconds."""
        self.total = 0.0
        """Seconds, of all looks."""
        self.watched = 0.0
        """Seconds since the first look."""

    @property
    def is_too_much(self) -> bool:
        """Whether what failed meanwhile shows nothing."""
        return self.most >= LATE_S or self.total > LATE_SHARE * self.watched

    async def watch(self) -> None:
        """Look until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LOOK_S
            await asyncio.sleep(LOOK_S)
            self.note(loop.time() - due)

    def note(self, late: float) -> None:
        """Count a look that was late by so many seconds."""
        self.most = max(self.most, late)
        self.total += late
        self.watched += LOOK_S + late


@dataclass(frozen=True, slots=True)
class RouterLateness:
    """How late a router's event loops have been, by its /metrics."""

    at: float
    """When they were read, in seconds."""
    seconds: dict[str, float]
    """Time for which each worker was late by more than 20 ms, as far as it ever was."""
    long_delays: float
    """Delays above LAG_BUCKET_S."""

    @classmethod
    def read(cls, metrics: str, now: float) -> Self:
        """Take it from the text of /metrics."""
        late: dict[str, float] = {}
        short = total = 0.0
        for family in text_string_to_metric_families(metrics):
            for sample in family.samples:
                match sample.name:
                    case "pd_router_event_loop_late_seconds_total":
                        late[sample.labels["worker"]] = sample.value
                    case "pd_router_event_loop_lag_seconds_count":
                        total = sample.value
                    case "pd_router_event_loop_lag_seconds_bucket":
                        if sample.labels["le"] == LAG_BUCKET_S:
                            short = sample.value
        return cls(now, late, total - short)

    def is_too_much_since(self, before: Self) -> bool:
        """Whether what failed since then shows nothing."""
        most = LATE_SHARE * (self.at - before.at)
        late = (
            seconds - before.seconds.get(worker, 0.0) for worker, seconds in self.seconds.items()
        )
        return self.long_delays > before.long_delays or max(late, default=0.0) > most
