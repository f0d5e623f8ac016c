"""How late an event loop is: the difference between when a timer was due and when it ran.

Times are seconds of `time.monotonic`.
"""

import asyncio
import time
from array import array
from collections.abc import Callable
from typing import Any

from benchmarks.distributions import percentile


class Lateness:
    """Lateness of timers since the last `take`. A skipped tick counts with its lateness at the
    skip."""

    def __init__(self) -> None:
        self.seconds = array("d")
        self.missed = 0

    def note(self, late: float) -> None:
        """Record one lateness in seconds; early (timer rounding) counts as on time."""
        self.seconds.append(max(late, 0.0))

    def take(self) -> dict[str, Any]:
        """Return the figures since the last call and start again."""
        late, missed = self.seconds, self.missed
        self.seconds, self.missed = array("d"), 0
        return {
            "beats": len(late) - missed,
            "missed": missed,
            "p99_s": percentile(late, 99),
            "max_s": percentile(late, 100),
        }


class IntervalTimer:
    """Calls `beat` every `step_s`, on a grid that does not drift, and records the lateness."""

    def __init__(self, step_s: float, beat: Callable[[], object], lateness: Lateness) -> None:
        self._step, self._beat, self._lateness = step_s, beat, lateness
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def start(self, phase_s: float = 0.0) -> None:
        """Begin, `phase_s` from now, in the running loop."""
        self._loop = asyncio.get_running_loop()
        self._due = time.monotonic() + phase_s
        self._again()

    def stop(self) -> None:
        """Stop."""
        if self._timer is not None:
            self._timer.cancel()

    def _again(self) -> None:
        self._timer = self._loop.call_later(max(self._due - time.monotonic(), 0.0), self._run)

    def _run(self) -> None:
        self._lateness.note(time.monotonic() - self._due)
        self._beat()
        self._due += self._step
        # A beat that is a whole step late is lost, not made up for: two tokens at once would be
        # another load than the requested one.
        while (late := time.monotonic() - self._due) > self._step:
            self._lateness.note(late)
            self._lateness.missed += 1
            self._due += self._step
        self._again()
