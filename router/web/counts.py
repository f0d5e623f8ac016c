"""The router's counts, up to date at the moment of reading."""

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
"""For which pieces are made in a turn of the event loop. 1,000 engines need a hundred turns, which
are long in a busy loop: with many more a scrape would take the 10 s that Prometheus waits."""


class Counts:
    """Takes events, for the metrics and the log, in batches."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        # A worker's counts must not be lost with it, and others show them.
        on_flushed = metrics.flush if metrics.are_merged else lambda: None
        self.event_buffer = EventBuffer([metrics.observe, AccessLog().observe], on_flushed)

    async def exposition(self, text_format: TextFormat = PLAIN) -> bytes:
        """The text that Prometheus scrapes."""
        self.event_buffer.flush()
        self._metrics.flush()
        state = await _in_turns(self._metrics.state(text_format))
        return await _in_turns(self._metrics.counts(text_format)) + state + text_format.end

    async def totals(self) -> Totals:
        """What all processes have counted."""
        self.event_buffer.flush()
        self._metrics.flush()
        # With many engines, or with files to merge, it takes too long for the event loop.
        return await asyncio.to_thread(self._metrics.totals)


async def _in_turns(pieces: Iterable[bytes]) -> bytes:
    """All pieces, made a few in a turn of the event loop: streams go on in between."""
    found, until = [], time.monotonic() + TURN_SECONDS
    for piece in pieces:
        found.append(piece)
        if time.monotonic() >= until:
            await asyncio.sleep(0)
            until = time.monotonic() + TURN_SECONDS
    return b"".join(found)
