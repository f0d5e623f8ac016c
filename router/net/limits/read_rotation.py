"""Lets connections to engines be read in turns while the event loop cannot keep up with them, or
while they keep requests from starting.

When 1,024 sockets are readable at once, libuv polls again, up to 48 times (`uv__io_poll`), before
it sends what was written, runs timers and begins requests. With two thousand streams that a process
cannot keep up with, such a turn of the event loop takes half a second. It is short while fewer
connections are read; and what an engine has written meanwhile comes in one read, which costs less
than one read per token.
"""

import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Final

from router.net.limits.read_limiter import LimitedReader

__all__ = [
    "COMPLAINT_SECONDS",
    "LONG_SECONDS",
    "MOST_READ",
    "READS_PER_STREAM",
    "ROTATION_SECONDS",
    "SAMPLE",
    "SLICE_SECONDS",
    "TRIAL_SECONDS",
    "ReadRotation",
]

log = logging.getLogger(__name__)

LONG_SECONDS: Final = 0.05
"""Time since the last refill from which on a turn of the event loop is long. Two thousand streams
of engines that are in step take 20 ms."""

READS_PER_STREAM: Final = 1.5
"""Mean reads of a stream in a long turn from which on the event loop cannot keep up: engines have
written tokens again before it has come to an end with the last ones."""

SAMPLE: Final = 32
"""One in so many connections counts its reads."""

MOST_READ: Final = 700
"""Most connections in the middle of an answer that are read at the same time. With those of clients
and those that wait for their answers, of which few are readable, that is less than 1,024."""

SLICE_SECONDS: Final = 0.02
"""How long these are read before it is others' turn: each of 2,048 streams is read every 60 ms."""

ROTATION_SECONDS: Final = 2.0
"""After this time all are read again: perhaps the event loop can keep up now."""

TRIAL_SECONDS: Final = 0.5
"""If it cannot, that shows within this time."""

COMPLAINT_SECONDS: Final = 60.0
"""Least seconds between two log lines."""


class ReadRotation:
    """`answering` returns the connections that are in the middle of an answer; those that wait for
    the first data of one are always read.

    A new connection for which `takes_sample` is true calls `count_read` after each of its reads.
    Call `refill` a hundred times a second. `clock` is monotonic, in seconds.
    """

    def __init__(
        self,
        answering: Callable[[], Sequence[LimitedReader]],
        *,
        most_read: int = MOST_READ,
        sample: int = SAMPLE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._answering = answering
        self._most_read = most_read
        self._sample = sample
        self._clock = clock
        self._connections = 0
        self._reads = 0
        self._least_reads = math.ceil(READS_PER_STREAM * most_read / sample)
        self._looks_at = self._least_reads
        """The number of reads at which the streams are counted."""
        self._refilled_at = math.inf
        self._aside: list[LimitedReader] = []
        """Those that are not read, longest first."""
        self._reading: dict[LimitedReader, None] = {}
        """Those that are, longest first; a set that keeps its order."""
        self.is_on = False
        """Whether connections are read in turns."""
        self.is_lasting = False
        """Whether they still have to be: the event loop could not keep up in the last trial."""
        self._was_overload = False
        """Whether it was on the last time because the event loop could not keep up."""
        self._slice_ends = self._ends = 0.0
        self._tried_at = self._complains_at = -math.inf

    def takes_sample(self) -> bool:
        """Whether the connection that is opened now counts its reads."""
        self._connections += 1
        return self._connections % self._sample == 0

    def count_read(self) -> None:
        """Count a read of a connection of the sample."""
        self._reads += 1
        if self._reads == self._looks_at and not self.is_on:
            self._look(self._clock())

    def on_starts_late(self) -> None:
        """Begin to read in turns, because turns of the event loop are so long that requests start
        late. Not in a trial, which shows whether it cannot keep up."""
        now = self._clock()
        if not self.is_on and now >= self._tried_at + TRIAL_SECONDS:
            self._begin(now, len(self._answering()), is_overload=False)

    def refill(self) -> None:
        """Count from 0 again, and go on to the next slice if it is time."""
        self._reads = 0
        self._looks_at = self._least_reads
        self._refilled_at = now = self._clock()
        if self.is_on and now >= self._slice_ends:
            if now < self._ends:
                self._next(now)
            else:
                self._tried_at = now
                self._end()

    def _look(self, now: float) -> None:
        """Begin to read in turns if the turn of the event loop is long for its streams."""
        answering = self._answering()
        sampled = sum([one.counts_reads for one in answering])
        enough = math.ceil(READS_PER_STREAM * sampled)
        if enough > self._reads:
            self._looks_at = enough
        elif now < self._refilled_at + LONG_SECONDS:
            self._looks_at = self._reads + self._least_reads
        elif len(answering) > self._most_read:
            self._begin(now, len(answering))

    def _begin(self, now: float, streams: int, *, is_overload: bool = True) -> None:
        is_trial = now < self._tried_at + TRIAL_SECONDS
        self.is_on = True
        self.is_lasting = self._was_overload and is_trial
        self._was_overload = is_overload
        self._ends = now + ROTATION_SECONDS
        self._next(now)
        if self.is_lasting and now >= self._complains_at:
            self._complains_at = now + COMPLAINT_SECONDS
            log.warning(
                "cannot keep up with %d streams, so they are read in turns, %d at a time: "
                "use more --workers or replicas",
                streams,
                self._most_read,
            )

    def _next(self, now: float) -> None:
        """Read those that have waited longest, in place of those that were read longest."""
        self._slice_ends = now + SLICE_SECONDS
        answering = dict.fromkeys(self._answering())
        if len(answering) <= self._most_read:
            self._end()
            return
        for one in self._aside:
            if one not in answering:  # it has ended or was closed
                one.put_back()
        waiting = [one for one in self._aside if one.is_set_aside]
        back, aside = waiting[: self._most_read], waiting[self._most_read :]
        reading = [one for one in self._reading if one in answering and not one.is_set_aside]
        reading += [one for one in answering if not one.is_set_aside and one not in self._reading]
        excess = max(0, len(reading) + len(back) - self._most_read)
        for one in reading[:excess]:
            one.set_aside()
        for one in back:
            one.put_back()
        self._aside = aside + reading[:excess]
        self._reading = dict.fromkeys(reading[excess:] + back)

    def _end(self) -> None:
        self.is_on = self.is_lasting = False
        for one in self._aside:
            one.put_back()
        self._aside = []
        self._reading = {}
