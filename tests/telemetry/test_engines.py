"""Series of engines that join and leave: removed engines leave none."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client import values
from prometheus_client.parser import text_string_to_metric_families

from router.commands.workers import COUNTS_BYTES, ENGINE_COUNTS_BYTES
from router.core.events import Event, LegAnswered, LegFailed, RequestEnded, SpeedProbed
from router.core.fleet.fleet import Fleet
from router.core.fleet.ledger import Ledger
from router.core.health import HealthThresholds
from router.core.membership.entry import Entry
from router.core.prefix.trust import HISTORY
from router.core.values import Endpoint, FailureKind, Mode, Role
from router.telemetry import metrics as module
from router.telemetry.metrics import Metrics, WorkerGroup

P0 = Endpoint("http://p0", Role.PREFILL)
D0, D1 = (Endpoint(f"http://d{number}", Role.DECODE) for number in range(2))


Worker = Callable[[int, Fleet], Metrics]


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Worker]:
    """Makes the metrics of worker processes, with files that they all read."""
    monkeypatch.setattr(values, "ValueClass", values.ValueClass)
    with contextlib.ExitStack() as stack:

        def one(number: int, fleet: Fleet) -> Metrics:
            metrics = Metrics(fleet, list, WorkerGroup(tmp_path, number, list, lambda: 0))
            stack.callback(metrics.close)
            return metrics

        yield one


def fleet_of(*endpoints: Endpoint) -> Fleet:
    """A fleet."""
    return Fleet(endpoints, Ledger(), HealthThresholds(), 5.0)


def story(endpoint: Endpoint) -> list[Event]:
    """What can be counted of an engine."""
    record = RequestEnded("id", "/v1/completions", 100.0)
    record.mode, record.ended = Mode.DIRECT, 104.0
    record.decode, record.stream, record.outcome, record.status = endpoint, True, "ok", 200
    record.asked_at, record.first_byte, record.chunks = 100.0, 101.0, 5
    return [
        LegAnswered(endpoint, 200, 0.1),
        LegAnswered(endpoint, 418, 0.1),
        LegFailed(endpoint, FailureKind.RESET),
        record,
    ]


def series(metrics: Metrics, endpoint: Endpoint) -> dict[tuple[str, str], float]:
    """An engine's samples that are counted, by name and distinguishing label."""
    found = {}
    for family in text_string_to_metric_families(metrics.exposition().decode()):
        for sample in family.samples:
            if sample.labels.get("endpoint") == endpoint.url:
                more = {k: v for k, v in sample.labels.items() if k not in ("endpoint", "role")}
                found[sample.name, ",".join(more.values())] = sample.value
    return found


ANSWERS = "pd_router_engine_answers_total"


def test_an_engine_that_is_gone_has_no_series_and_begins_at_zero_when_it_comes_back() -> None:
    fleet = fleet_of(P0, D0)
    metrics = Metrics(fleet, list)
    before = series(metrics, D0)
    metrics.observe(story(D0))
    assert series(metrics, D0)[ANSWERS, "418"] == 1
    fleet.apply([Entry(P0, 0)], 1.0)
    metrics.follow()
    assert series(metrics, D0) == {}
    assert series(metrics, P0)
    metrics.observe([*story(D0), SpeedProbed(D0, "ok")])  # buffered when it was forgotten
    assert series(metrics, D0) == {}
    fleet.apply([Entry(P0, 0), Entry(D0, 1)], 2.0)
    metrics.follow()
    assert series(metrics, D0) == before
    metrics.observe(story(D0))
    assert series(metrics, D0)[ANSWERS, "200"] == 1


def test_an_engine_that_joins_begins_at_zero() -> None:
    fleet = fleet_of(D0)
    metrics = Metrics(fleet, list)
    assert series(metrics, D1) == {}
    fleet.apply([Entry(D0, 0), Entry(D1, 1)], 1.0)
    metrics.follow()
    assert series(metrics, D1).keys() == series(metrics, D0).keys()


def test_no_worker_shows_counts_of_a_removed_engine(worker: Worker) -> None:
    fleets = [fleet_of(D0, D1) for _ in range(2)]
    workers = [worker(number, fleet) for number, fleet in enumerate(fleets)]
    for metrics in workers:
        metrics.observe(story(D0))
        metrics.observe(story(D1))
        metrics.flush()
    assert series(workers[0], D0)[ANSWERS, "418"] == 2
    fleets[0].apply([Entry(D1, 1)], 1.0)
    workers[0].follow()
    assert series(workers[0], D0) == {}
    assert series(workers[0], D1)[ANSWERS, "418"] == 2


def test_the_files_do_not_grow_with_the_engines_that_have_come_and_gone(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COMPACT_AFTER", 4)
    fleet = fleet_of(D0)
    metrics = worker(0, fleet)

    def come_and_go(number: int) -> None:
        other = Endpoint(f"http://e{number:03}", Role.DECODE)
        fleet.apply([Entry(D0, 0), Entry(other, 1)], 1.0)
        metrics.follow()
        metrics.observe([*story(other), *story(D0)])
        metrics.flush()
        fleet.apply([Entry(D0, 0)], 1.0)
        metrics.follow()

    def keys() -> dict[str, int]:
        assert metrics._files is not None
        found = metrics._files._files
        return {prefix: len(file._positions) for prefix, file in found.items()}

    for number in range(4):
        come_and_go(number)
    before = keys()
    for number in range(4, 40):
        come_and_go(number)
    assert keys() == before
    assert len(metrics._series) < 40
    assert series(metrics, D0)[ANSWERS, "200"] == 40
    metrics.observe(story(D0))
    assert series(metrics, D0)[ANSWERS, "200"] == 41


def test_the_files_have_the_requested_initial_size(worker: Worker) -> None:
    engines = [Endpoint(f"http://10.0.100.{number:03}:8000", Role.DECODE) for number in range(200)]
    fleet = fleet_of(*engines)
    metrics = worker(0, fleet)
    metrics.observe([event for engine in engines for event in story(engine)])
    for member in fleet:
        member.prefix_coverage.add(1_000, HISTORY, 0)
    metrics.flush()
    assert metrics._files is not None
    used = [file._used for file in metrics._files._files.values()]
    assert 0.8 < sum(used) / (200 * ENGINE_COUNTS_BYTES) < 1.0
    assert sum(used) < COUNTS_BYTES + 200 * ENGINE_COUNTS_BYTES


def test_a_worker_that_takes_anothers_place_goes_on_with_its_counts(worker: Worker) -> None:
    fleet = fleet_of(D0)
    first = worker(0, fleet)
    first.observe(story(D0))
    first.flush()
    second = worker(0, fleet)
    second.observe(story(D0))
    assert series(second, D0)[ANSWERS, "200"] == 2


def test_a_worker_with_a_late_event_loop_is_distinguished(worker: Worker) -> None:
    workers = [worker(number, fleet_of(D0)) for number in range(2)]
    workers[1].observe_loop_lag(0.5)
    text = workers[0].exposition().decode()
    for number, seconds in enumerate((0.0, 0.5)):
        assert f'pd_router_event_loop_late_seconds_total{{worker="{number}"}} {seconds}\n' in text
