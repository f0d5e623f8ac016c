"""Watches AIPerf while it runs: the records that it writes, and its workers' CPU."""

import time
from array import array
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from benchmarks.gate.aiperf.records import Record, records
from benchmarks.gate.traffic.load import Progress
from benchmarks.system import procfs

OnProgress = Callable[[str, Progress], None]
# Titles of the processes that send and read. Its timing manager busy-waits on another core.
WORKER, NOT_A_WORKER = b"aiperf worker_", b"aiperf worker_manager"


class Watch:
    """Reads new records and CPU times at each `look`."""

    def __init__(
        self, root: int, path: Path, concurrency: int, requests: int, on_progress: OnProgress
    ) -> None:
        self._root, self._path, self._on_progress = root, path, on_progress
        self._concurrency, self._requests = concurrency, requests
        self._read, self._measured = 0, 0
        self._cpu: dict[int, list[tuple[float, float]]] = defaultdict(list)

    @property
    def has_records(self) -> bool:
        """Whether AIPerf has written any record."""
        return self._read > 0

    def look(self) -> None:
        """Report new records. Raises Unreadable."""
        now = time.monotonic()
        for pid, cpu in workers(self._root):
            self._cpu[pid].append((now, cpu))
        found = list(records(self._new_lines()))
        for phase, warmup in (("warm-up", True), ("measured", False)):
            if some := [each for each in found if each.warmup is warmup]:
                self._say(phase, some)

    def _say(self, phase: str, some: list[Record]) -> None:
        if phase == "measured":
            self._measured += len(some)
        seen = [each.seen for each in some]
        progress = Progress(
            # At the end of a closed loop no more are in flight than remain.
            in_flight=min(self._concurrency, max(self._requests - self._measured, 0)),
            ended=len(seen),
            errors=sum(each.error is not None for each in seen),
            chunks=sum(each.chunks for each in seen),
            firsts=array("d", (e.first - e.sent for e in seen if e.first is not None)),
        )
        self._on_progress(phase, progress)

    def _new_lines(self) -> list[bytes]:
        """The complete lines since the last call."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read)
            whole = file.read().rpartition(b"\n")[0]
        if not whole:
            return []
        self._read += len(whole) + 1
        return whole.split(b"\n")

    def busiest(self, begin: float, end: float) -> float:
        """Its share of one core in that time (of time.monotonic); 0 with fewer than two samples."""
        return max((_share(each, begin, end) for each in self._cpu.values()), default=0.0)


def _share(marks: list[tuple[float, float]], begin: float, end: float) -> float:
    inside = [each for each in marks if begin <= each[0] <= end]
    if len(inside) < 2:
        return 0.0
    (since, before), (until, after) = inside[0], inside[-1]
    return (after - before) / (until - since)


def workers(root: int) -> list[tuple[int, float]]:
    """Process id and CPU seconds of AIPerf's workers below a process."""
    return [(each.pid, each.cpu_s) for each in procfs.tree(root) if _is_worker(each.pid)]


def _is_worker(pid: int) -> bool:
    try:
        title = (procfs.PROC / str(pid) / "cmdline").read_bytes()
    except OSError:  # it has ended meanwhile
        return False
    return title.startswith(WORKER) and not title.startswith(NOT_A_WORKER)
