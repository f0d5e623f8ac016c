"""Progress while AIPerf runs."""

import sys
from pathlib import Path
from subprocess import PIPE, Popen

from benchmarks.gate.aiperf.watch import Watch, _share, workers
from benchmarks.gate.traffic.load import Progress

DATA = Path(__file__).parent / "data"
NOBODY = 2**22 + 1


def test_records_are_reported_once_and_only_complete(tmp_path: Path) -> None:
    told: list[tuple[str, Progress]] = []
    path = tmp_path / "profile_export.jsonl"
    watch = Watch(NOBODY, path, 2, 6, lambda *what: told.append(what))
    watch.look()
    assert not told
    assert not watch.has_records
    data = (DATA / "profile_export.jsonl").read_bytes()
    cut = data.index(b"\n", data.index(b"\n") + 1) + 20  # two lines and a bit
    path.write_bytes(data[:cut])
    watch.look()
    watch.look()
    assert [(phase, each.ended, each.errors) for phase, each in told] == [
        ("warm-up", 1, 0),
        ("measured", 1, 1),
    ]
    path.write_bytes(data)
    watch.look()
    assert len(told) == 3
    phase, last = told[-1]
    assert (phase, last.ended, last.errors, last.in_flight) == ("measured", 5, 1, 0)
    assert (last.chunks, len(last.firsts)) == (14, 4)
    assert watch.has_records


def test_the_share_of_a_core_is_of_the_phase_only() -> None:
    marks = [(0.0, 5.0), (10.0, 6.0), (11.0, 6.5), (12.0, 7.0), (20.0, 15.0)]
    assert _share(marks, 9.0, 13.0) == 0.5
    assert _share(marks, 9.0, 10.5) == 0.0, "looked once"


def test_workers_are_known_by_their_titles() -> None:
    """The manager of workers is none."""
    script = "print(flush=True); input()"
    both = [
        Popen([title, "-c", script], executable=sys.executable, stdin=PIPE, stdout=PIPE)
        for title in ("aiperf worker_1a2b", "aiperf worker_manager")
    ]
    try:
        for each in both:
            assert each.stdout is not None
            each.stdout.readline()
        assert [[pid for pid, _ in workers(each.pid)] for each in both] == [[both[0].pid], []]
    finally:
        for each in both:
            each.communicate()
