"""What the router has counted, up to the moment at which somebody asks."""

import asyncio

from router.telemetry.access_log import AccessLog
from router.telemetry.event_buffer import EventBuffer
from router.telemetry.metrics import Metrics
from router.telemetry.totals import Totals

__all__ = ["Counts"]


class Counts:
    """Takes events, for the metrics and the log, in batches."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        # A worker's counts must not be lost with it, and others show them.
        on_flushed = metrics.flush if metrics.are_merged else lambda: None
        self.event_buffer = EventBuffer([metrics.observe, AccessLog().observe], on_flushed)

    async def exposition(self) -> bytes:
        """The text that Prometheus scrapes."""
        self.event_buffer.flush()
        if not self._metrics.are_merged:
            return self._metrics.exposition()
        # Merging the files of all workers is slow: not on the event loop.
        state = self._metrics.state()
        return await asyncio.to_thread(self._metrics.counts) + state

    async def totals(self) -> Totals:
        """What all processes have counted."""
        self.event_buffer.flush()
        self._metrics.flush()
        # With many engines, or with files to merge, it takes too long for the event loop.
        return await asyncio.to_thread(self._metrics.totals)
