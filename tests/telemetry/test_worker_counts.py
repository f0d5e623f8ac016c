"""The counts of several workers are what prometheus-client makes of their files, in pieces."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge, generate_latest, values
from prometheus_client.multiprocess import MultiProcessCollector

from router.telemetry.file_values import ValueFiles
from router.telemetry.in_pieces import PIECE_SAMPLES, Counter, Histogram, text_in_pieces
from router.telemetry.text_format import PLAIN
from router.telemetry.worker_counts import WorkerCounts

Worker = Callable[[int], None]


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Worker]:
    """Makes the files of a worker that has counted in vain and for so many engines."""
    monkeypatch.setattr(values, "ValueClass", values.ValueClass)
    with contextlib.ExitStack() as stack:

        def one(number: int) -> None:
            files = ValueFiles(tmp_path, number)
            stack.callback(files.close)
            monkeypatch.setattr(values, "ValueClass", files)
            registry = CollectorRegistry()
            Counter("alone", "One line, \\ and\n another.", registry=registry).inc(3)
            names = ["role", "endpoint"]
            answers = Counter("answers", "By engine.", names, registry=registry)
            seconds = Histogram("seconds", "By engine.", names, buckets=(2, 10), registry=registry)
            wait = Histogram("wait_seconds", "Of all.", registry=registry)
            worst = Gauge("worst", "The most.", multiprocess_mode="max", registry=registry)
            worst.set(7 - number)
            queue = Gauge("queue", "Of all.", multiprocess_mode="livesum", registry=registry)
            queue.set(number)
            wait.observe(0.3 * number)
            for engine in range(number, 2 * PIECE_SAMPLES):  # they were reported one by one
                answers.labels("decode", f"e{engine}").inc(engine)
                seconds.labels("decode", f"e{engine}").observe(engine % 13)

        yield one


def shown(counts: WorkerCounts) -> WorkerCounts:
    """With the series of all engines."""
    counts.endpoints = frozenset(("decode", f"e{n}") for n in range(2 * PIECE_SAMPLES))
    return counts


def test_their_text_is_that_of_prometheus_client(worker: Worker, tmp_path: Path) -> None:
    for number in range(3):
        worker(number)
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(tmp_path))  # type: ignore[no-untyped-call]
    ours = b"".join(text_in_pieces(shown(WorkerCounts(tmp_path)).pieces(), PLAIN))
    assert sorted(ours.splitlines()) == sorted(generate_latest(registry).splitlines())


def test_the_exemplars_are_those_of_the_answering_worker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one, other = ValueFiles(tmp_path, 0), ValueFiles(tmp_path, 1)
    for files, trace_id in ((one, "a"), (other, "b")):
        monkeypatch.setattr(values, "ValueClass", files)
        seconds = Histogram("seconds", "Of all.", buckets=(2, 10), registry=CollectorRegistry())
        seconds.observe(1.0, {"trace_id": trace_id})
        files.close()
    [family] = WorkerCounts(tmp_path, other.exemplars).collect()
    found = [(each.value, each.exemplar) for each in family.samples if "le" in each.labels]
    [last] = other.exemplars.values()
    assert last.labels == {"trace_id": "b"}
    assert found == [(2.0, last), (2.0, None), (2.0, None)]


def test_a_file_in_creation_is_skipped(worker: Worker, tmp_path: Path) -> None:
    worker(0)
    before = [family.samples for family in shown(WorkerCounts(tmp_path)).collect()]
    (tmp_path / "counter_1.db").touch()
    assert [family.samples for family in shown(WorkerCounts(tmp_path)).collect()] == before


def test_no_piece_takes_long(worker: Worker, tmp_path: Path) -> None:
    for number in range(3):
        worker(number)
    counts = shown(WorkerCounts(tmp_path))
    found = list(counts.pieces())
    # 2,000 entries, which are read three times, and looked at once.
    assert sum(piece is None for piece in found) >= 3 + 2000 / PIECE_SAMPLES
    assert max(len(piece.samples) for piece in found if piece is not None) == PIECE_SAMPLES
    assert [each.samples for each in counts.collect()] == [p.samples for p in found if p]


def test_removed_engines_are_skipped(worker: Worker, tmp_path: Path) -> None:
    worker(0)
    counts = WorkerCounts(tmp_path)
    counts.endpoints = frozenset({("decode", "e3")})
    samples = [each for family in counts.collect() for each in family.samples]
    told = {each.labels["endpoint"] for each in samples if "endpoint" in each.labels}
    assert told == {"e3"}
    assert [each.value for each in samples if each.name == "seconds_bucket"] == [0, 1, 1]
