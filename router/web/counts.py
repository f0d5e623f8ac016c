"""Collects events for metrics and log, and returns counts that include all events so far."""

import asyncio
import time
from collections.abc import Iterable

from router.telemetry.access_log import AccessLog
from router.telemetry.event_buffer import EventBuffer
from router.telemetry.metrics import Metrics
from router.telemetry.text_format import PLAIN, TextFormat
from router.telemetry.totals import Totals

__all__ = ["Counts"]

TURN_SECONDS = 0.01
"""Seconds per turn of the event loop for generating pieces of a page. With 1,000 engines a page
takes a hundred turns, which are long in a busy loop; shorter ones would exceed Prometheus' scrape
time-out of 10 s."""


class Counts:
    """Passes events to metrics and log in batches."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        # A worker's counts must survive its death, and other workers export them.
        on_flushed = metrics.flush if metrics.are_merged else lambda: None
        self.event_buffer = EventBuffer([metrics.observe, AccessLog().observe], on_flushed)

    async def exposition(self, text_format: TextFormat = PLAIN) -> bytes:
        """The page for Prometheus."""
        self.event_buffer.flush()
        self._metrics.flush()
        state = await _in_turns(self._metrics.state(text_format))
        return await _in_turns(self._metrics.counts(text_format)) + state + text_format.end

    async def totals(self) -> Totals:
        """The totals of all processes."""
        self.event_buffer.flush()
        self._metrics.flush()
        # Too slow for the event loop with many engines or with files to merge.
        return await asyncio.to_thread(self._metrics.totals)


async def _in_turns(pieces: Iterable[bytes]) -> bytes:
    """Joins all pieces, generated a few per turn of the event loop, so that streams continue in
    between."""
    found, until = [], time.monotonic() + TURN_SECONDS
    for piece in pieces:
        found.append(piece)
        if time.monotonic() >= until:
            await asyncio.sleep(0)
            until = time.monotonic() + TURN_SECONDS
    return b"".join(found)
