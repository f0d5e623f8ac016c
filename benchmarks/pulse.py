"""How late an event loop is: the difference between when a timer was due and when it ran.

Times are seconds of `time.monotonic`.
"""

import asyncio
import time
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np


class Lateness:
    """Collects how late timers ran since the last `take`."""

    def __init__(self) -> None:
        self._late = array("d")
        self.missed = 0

    def note(self, late: float) -> None:
        """Record one lateness in seconds; early (timer rounding) counts as on time."""
        self._late.append(max(late, 0.0))

    def take(self) -> dict[str, Any]:
        """Return the figures since the last call and start again."""
        late, missed = np.asarray(self._late), self.missed
        self._late, self.missed = array("d"), 0
        if not len(late):
            return {"beats": 0, "missed": missed, "p99_s": None, "max_s": None}
        p99 = float(np.percentile(late, 99))
        return {"beats": len(late), "missed": missed, "p99_s": p99, "max_s": float(late.max())}


class Pulse:
    """Calls `beat` every `step_s`, on a grid that does not drift, and records the lateness."""

    def __init__(self, step_s: float, beat: Callable[[], None], lateness: Lateness) -> None:
        self._step, self._beat, self._lateness = step_s, beat, lateness
        self._due = 0.0

    def start(self, loop: asyncio.AbstractEventLoop, phase_s: float = 0.0) -> None:
        """Begin, `phase_s` from now."""
        self._loop = loop
        self._due = time.monotonic() + phase_s
        self._again()

    def _again(self) -> None:
        self._loop.call_later(max(self._due - time.monotonic(), 0.0), self._run)

    def _run(self) -> None:
        late = time.monotonic() - self._due
        self._lateness.note(late)
        self._beat()
        self._due += self._step
        # A beat that is a whole step late is lost, not made up for: two tokens at once would be
        # another load than the one that was asked for.
        while self._due < time.monotonic() - self._step:
            self._due += self._step
            self._lateness.missed += 1
        self._again()
