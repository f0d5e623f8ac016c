"""Detects gauges that an engine does not refresh, as opposed to those of an engine with a steady
load.

vLLM updates its metrics at each step. When all its requests are aborted there is no next step, and
the gauges count them until the next request (vllm-project/vllm#22545, #29928). A router that relied
on them would never send one.
"""

from router.core.values import Gauges

__all__ = ["STALE_AFTER", "StaleGauges"]

STALE_AFTER = 3
"""Consecutive scrapes without a change after which gauges are stale. An engine that computes one
long prompt may look unchanged for some seconds, one that generates does not."""


class StaleGauges:
    """Detects that an engine's gauges are stale while this router has no requests on it."""

    __slots__ = ("_before", "_unchanged")

    def __init__(self) -> None:
        self._before: Gauges | None = None
        self._unchanged = 0

    @property
    def are_stale(self) -> bool:
        """Whether the requests that the gauges count have ended."""
        return self._unchanged >= STALE_AFTER

    def observe(self, gauges: Gauges | None, *, is_idle: bool) -> None:
        """Update from a scrape. `is_idle`: this router had no requests on the engine at the last
        ticks. Without a counter of generated tokens, stale gauges cannot be detected."""
        before, self._before = self._before, gauges
        is_same = (
            before is not None
            and gauges is not None
            and gauges.generated is not None
            and _moving(before) == _moving(gauges)
        )
        self._unchanged = self._unchanged + 1 if is_idle and is_same else 0


def _moving(gauges: Gauges) -> tuple[int | None, ...]:
    """The values that change while an engine has requests."""
    return (
        gauges.running,
        gauges.waiting,
        gauges.generated,
        gauges.cache_queries,
        gauges.preemptions,
    )
