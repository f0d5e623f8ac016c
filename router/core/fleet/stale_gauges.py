"""Tells gauges that an engine does not refresh from those of an engine with a steady load.

vLLM writes its metrics at each step. When all its requests are aborted there is no next step, and
the gauges count them until a request comes (vllm-project/vllm#22545, #29928): a router that went by
them would send it none.
"""

from router.core.values import Gauges

__all__ = ["STALE_AFTER", "StaleGauges"]

STALE_AFTER = 3
"""Scrapes in a row that find all as the one before. An engine that computes one long prompt may
look so for some seconds; one that generates does not."""


class StaleGauges:
    """Detects that an engine's gauges are stale, while this router has no requests there."""

    __slots__ = ("_before", "_unchanged")

    def __init__(self) -> None:
        self._before: Gauges | None = None
        self._unchanged = 0

    @property
    def are_stale(self) -> bool:
        """Whether the requests that they count are gone."""
        return self._unchanged >= STALE_AFTER

    def observe(self, gauges: Gauges | None, *, is_idle: bool) -> None:
        """Update from a scrape. `is_idle`: this router has had no requests there lately. Without a
        counter of generated tokens nothing tells that the engine stands still."""
        before, self._before = self._before, gauges
        is_same = (
            before is not None
            and gauges is not None
            and gauges.generated is not None
            and _moving(before) == _moving(gauges)
        )
        self._unchanged = self._unchanged + 1 if is_idle and is_same else 0


def _moving(gauges: Gauges) -> tuple[int | None, ...]:
    """What changes while an engine has requests."""
    return (
        gauges.running,
        gauges.waiting,
        gauges.generated,
        gauges.cache_queries,
        gauges.preemptions,
    )
