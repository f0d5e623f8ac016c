"""Runs one after another, each with a time limit, so that one that breaks costs only itself."""

import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

__all__ = ["DONE", "LEAST", "Outcome", "TimeLimit", "carry_out", "time_limit"]

DONE, SKIPPED, LATE = "done", "skipped: no time was left", "stopped at its time limit"
LEAST = 20.0
"""Seconds. With less left a run is not begun: its engines would hardly start."""

Figures = Mapping[str, Any]
Run = Callable[[], Figures]


class TimeLimit(KeyboardInterrupt):
    """A run's time is over. Like Ctrl-C, it passes through event loops and handlers of errors."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raises TimeLimit in what happens inside, in the main thread."""

    def over(_number: int, _frame: FrameType | None) -> None:
        raise TimeLimit

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run: what became of it, its seconds with the start of engines, and what it found."""

    name: str
    outcome: str
    seconds: float
    figures: Figures = field(default_factory=dict)


def carry_out(
    runs: Sequence[tuple[str, Run]],
    limits: Mapping[str, float],
    total: float,
    keep: Callable[[Outcome], None],
    clock: Callable[[], float] = time.monotonic,
) -> list[Outcome]:
    """Outcomes in order; each goes to `keep` at once. A run has its limit, or what is left of
    `total` seconds."""
    begun = clock()
    outcomes = []
    for name, run in runs:
        left = total - (clock() - begun)
        if left < LEAST:
            outcome = Outcome(name, SKIPPED, 0.0)
        else:
            outcome = _one(name, run, min(limits[name], left), clock)
        outcomes.append(outcome)
        keep(outcome)
    return outcomes


def _one(name: str, run: Run, limit: float, clock: Callable[[], float]) -> Outcome:
    begun = clock()
    figures: Figures = {}
    try:
        with time_limit(limit):
            figures = run()
        outcome = DONE
    except TimeLimit:
        outcome = f"{LATE} of {limit:.0f} s"
    except Exception as error:  # noqa: BLE001 - it must not cost the other runs
        traceback.print_exc()
        outcome = f"failed: {type(error).__name__}: {error}"
    return Outcome(name, outcome, round(clock() - begun, 1), figures)
