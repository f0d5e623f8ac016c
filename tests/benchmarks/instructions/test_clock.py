import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.instructions.clock import Clock

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

# Answers each line with three looks at the clock, and one after a wait for nothing.
PROGRAM = """
import select, sys, time
for _ in sys.stdin:
    looks = [time.clock_gettime_ns(time.CLOCK_MONOTONIC) for _ in range(3)]
    select.epoll().poll(0.01)
    print(*looks, time.clock_gettime_ns(time.CLOCK_MONOTONIC), flush=True)
"""
STEP_NS = 5000


class Watched:
    """A process with the clock."""

    def __init__(self, clock: Clock) -> None:
        command = ["env", *clock.environment(), sys.executable, "-c", PROGRAM]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def looks(self) -> list[int]:
        """Nanoseconds as it sees them."""
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write("\n")
        stdin.flush()
        return [int(each) for each in stdout.readline().split()]

    def end(self) -> None:
        """Close its input, which ends it."""
        self.process.communicate(timeout=60)


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path)


@pytest.fixture
def watched(clock: Clock) -> Iterator[Watched]:
    watched = Watched(clock)
    try:
        yield watched
    finally:
        watched.end()


def test_while_it_is_held_time_passes_with_each_look(clock: Clock, watched: Watched) -> None:
    watched.looks()
    with clock.held():
        first, second, third, _ = watched.looks()
    assert (second - first, third - second) == (STEP_NS, STEP_NS)


def test_a_timed_out_wait_advances_the_clock_by_its_timeout(clock: Clock, watched: Watched) -> None:
    with clock.held():
        _, _, before, after = watched.looks()
    assert 10_000_000 <= after - before < 11_000_000


def test_time_can_be_skipped(clock: Clock, watched: Watched) -> None:
    with clock.held():
        *_, before = watched.looks()
        clock.skip(3.0)
        after, *_ = watched.looks()
    assert 3_000_000_000 <= after - before < 3_001_000_000


def test_before_and_afterwards_it_is_the_real_one(clock: Clock, watched: Watched) -> None:
    before = watched.looks()
    assert before[1] - before[0] != STEP_NS or before[2] - before[1] != STEP_NS
    with clock.held():
        watched.looks()
    after = watched.looks()
    assert after[0] > before[0]
    assert after[1] - after[0] != STEP_NS or after[2] - after[1] != STEP_NS
