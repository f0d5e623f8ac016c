"""Waits before a turn until other processes leave the machine idle enough."""

import time

from benchmarks.system import procfs

# Short enough to catch a pause between two test runs of a neighbour, long enough to mean something.
POLL_S = 1.0
# Less than what makes a turn void: they may start again while the turn runs.
BUSY_CORES = 0.3


def wait(patience_s: float) -> bool:
    """Return whether others used little of the machine for a moment, within `patience_s`."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        before = procfs.machine_busy_s()
        time.sleep(POLL_S)
        if (procfs.machine_busy_s() - before) / POLL_S < BUSY_CORES:
            return True
    return False
