"""Lets connections to engines be read in turns while the event loop cannot keep up with them.

When 1,024 sockets are readable at once, libuv polls again, up to 48 times (`uv__io_poll`), before
it sends what was written, runs timers and begins requests. With two thousand streams that a process
cannot keep up with, such a turn of the event loop takes half a second. It is short while fewer
connections are read; and what an engine has written meanwhile comes in one read, which costs less
than one read per token.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from router.net.limits.limited_reader import LimitedReader

__all__ = ["MOST_READ", "READS_PER_STREAM", "ROTATION_SECONDS", "SLICE_SECONDS", "ReadRotation"]

log = logging.getLogger(__name__)

READS_PER_STREAM: Final = 1.5
"""Mean reads of a stream between two refills (10 ms) from which on the event loop cannot keep up:
engines have written tokens again before it has come to an end with the last ones."""

MOST_READ: Final = 700
"""Most connections in the middle of an answer that are read at the same time. Together with
clients' and those that wait for their answers, fewer than 1,024 are readable."""

SLICE_SECONDS: Final = 0.02
"""How long these are read before it is others' turn: each of 2,048 streams is read every 60 ms."""

ROTATION_SECONDS: Final = 2.0
"""After this time all are read again: perhaps the event loop can keep up now."""

COMPLAINT_SECONDS: Final = 60.0
"""Least seconds between two log lines."""


class ReadRotation:
    """Counts reads from engines. `answering` returns the connections that are in the middle of an
    answer; those that wait for one, as before a first token, are always read.

    Call `refill` a hundred times a second.
    """

    def __init__(
        self, answering: Callable[[], Sequence[LimitedReader]], *, most_read: int = MOST_READ
    ) -> None:
        self._answering = answering
        self._most_read = most_read
        self._least_reads = math.ceil(READS_PER_STREAM * most_read)
        self._reads = 0
        self._looks_at = self._least_reads
        """The number of reads at which the streams are counted."""
        self._aside: deque[LimitedReader] = deque()
        """Those that are not read, longest first."""
        self.is_on = False
        """Whether connections are read in turns."""
        self._slice_ends = self._ends = 0.0
        self._complains_at = -math.inf

    def count_read(self) -> None:
        """Count a read from an engine."""
        self._reads += 1
        if self._reads == self._looks_at:
            self._look()

    def refill(self, now: float) -> None:
        """Count from 0 again, and go on to the next slice if it is time. `now`: monotonic."""
        self._reads = 0
        self._looks_at = self._least_reads
        if self.is_on and now >= self._slice_ends:
            if now < self._ends:
                self._next(now)
            else:
                self._end()

    def _look(self) -> None:
        streams = len(self._answering())
        enough = math.ceil(READS_PER_STREAM * streams)
        if enough > self._reads:
            self._looks_at = enough
        elif streams > self._most_read and not self.is_on:
            self._begin(time.monotonic(), streams)

    def _begin(self, now: float, streams: int) -> None:
        self.is_on = True
        self._ends = now + ROTATION_SECONDS
        self._next(now)
        if now >= self._complains_at:
            self._complains_at = now + COMPLAINT_SECONDS
            log.warning(
                "cannot keep up with %d streams, so they are read in turns, %d at a time: "
                "use more --workers or replicas",
                streams,
                self._most_read,
            )

    def _next(self, now: float) -> None:
        """Read those that have waited longest, and set the others aside."""
        self._slice_ends = now + SLICE_SECONDS
        answering = self._answering()
        if len(answering) <= self._most_read:
            self._end()
            return
        back = [self._aside.popleft() for _ in range(min(self._most_read, len(self._aside)))]
        reading = [one for one in answering if not one.is_set_aside]
        for one in reading[self._most_read - len(back) :]:
            one.set_aside()
            self._aside.append(one)
        for one in back:
            one.put_back()

    def _end(self) -> None:
        self.is_on = False
        while self._aside:
            self._aside.popleft().put_back()
