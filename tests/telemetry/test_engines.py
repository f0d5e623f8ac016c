"""Series of engines that join and leave: removed engines leave none."""

from collections.abc import Callable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from router.core.count_rows import CountRows
from router.core.events import Event, LegAnswered, LegFailed, RequestEnded, SpeedProbed
from router.core.fleet.fleet import Fleet
from router.core.fleet.ledger import Ledger
from router.core.health import HealthThresholds
from router.core.membership.entry import Entry
from router.core.prefix.trust import HISTORY
from router.core.values import Endpoint, FailureKind, Mode, Role
from router.telemetry.metrics import Metrics
from tests.telemetry.metrics_bench import COUNT_BYTES, worker_group

P0 = Endpoint("http://p0", Role.PREFILL)
D0, D1 = (Endpoint(f"http://d{number}", Role.DECODE) for number in range(2))


Worker = Callable[[int, Fleet], Metrics]


@pytest.fixture
def worker() -> Worker:
    """Makes the metrics of two worker processes, whose counts they all read."""
    memory = [memoryview(bytearray(COUNT_BYTES)) for _ in range(2)]
    return lambda number, fleet: Metrics(fleet, list, worker_group(number, memory))


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
        metrics.publish()
    assert series(workers[0], D0)[ANSWERS, "418"] == 2
    fleets[0].apply([Entry(D1, 1)], 1.0)
    workers[0].follow()
    assert series(workers[0], D0) == {}
    assert series(workers[0], D1)[ANSWERS, "418"] == 2


def test_engines_that_have_come_and_gone_take_no_room(worker: Worker) -> None:
    fleet = fleet_of(D0)
    metrics = worker(0, fleet)
    for number in range(500):  # those of 200 at a time fit
        other = Endpoint(f"http://e{number:03}", Role.DECODE)
        fleet.apply([Entry(D0, 0), Entry(other, 1)], 1.0)
        metrics.follow()
        metrics.observe([*story(other), *story(D0)])
        metrics.publish()
        fleet.apply([Entry(D0, 0)], 1.0)
        metrics.follow()
    assert series(metrics, D0)[ANSWERS, "200"] == 500
    assert len(metrics._series) < 40


def test_a_full_fleet_fits_into_the_memory_for_it() -> None:
    url = "http://prefill-0.prefill.some-namespace.svc.cluster.local:8000/" + "x" * 240
    engines = [Endpoint(f"{url}{number:03}", Role.DECODE) for number in range(200)]
    fleet = fleet_of(*engines)
    memory = memoryview(bytearray(CountRows.size(len(engines)) - CountRows.size(0) + COUNT_BYTES))
    metrics = Metrics(fleet, list, worker_group(0, [memory]))
    metrics.observe([event for engine in engines for event in story(engine)])
    for member in fleet:
        member.prompts.coverage.add(1_000, HISTORY, 0)
    metrics.publish()
    assert series(metrics, engines[-1])[ANSWERS, "418"] == 1
    used = memory.cast("q")[0] * 8
    assert 0.3 < used / len(memory) < 1.0


def test_a_worker_that_takes_anothers_place_goes_on_with_its_counts(worker: Worker) -> None:
    fleet = fleet_of(D0)
    first = worker(0, fleet)
    first.observe(story(D0))
    first.publish()
    second_fleet = fleet_of()  # it does not know the engines yet
    second = worker(0, second_fleet)
    second_fleet.apply([Entry(D0, 0)], 1.0)
    second.follow()
    second.observe(story(D0))
    assert series(second, D0)[ANSWERS, "200"] == 2


def test_a_worker_removes_its_predecessors_engines_that_have_left(worker: Worker) -> None:
    first = worker(0, fleet_of(D0, D1))
    first.publish()
    second = worker(0, fleet_of(D1))
    second.follow()
    assert second._series.engines == {D1}


def test_late_event_loops_are_exported_by_worker(worker: Worker) -> None:
    workers = [worker(number, fleet_of(D0)) for number in range(2)]
    workers[1].observe_loop_lag(0.5)
    text = workers[0].exposition().decode()
    for number, seconds in enumerate((0.0, 0.5)):
        assert f'pd_router_event_loop_late_seconds_total{{worker="{number}"}} {seconds}\n' in text
