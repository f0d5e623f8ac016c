"""What failures say of an engine: those of a crash count as one."""

import pytest

from router.core.events import LegAnswered, LegDone, LegFailed, Probed
from router.core.fleet.fleet import SHUTDOWN_SECONDS, Fleet
from router.core.fleet.worker_events import for_workers
from router.core.health import HealthSignal, State
from router.core.judge.outlier import HEALTHY, OutlierConfig
from router.core.judge.verdict import Exclusion, ExclusionConfig
from router.core.membership.entry import Entry
from router.core.values import Endpoint, FailureKind, Role
from tests.core.fixtures import D0, D1
from tests.core.fleets import break_stream, fleet_up, up

E0 = Endpoint("http://e0:8000", Role.ENCODE)


def hang(fleet: Fleet, engine: Endpoint, requests: int, now: float) -> None:
    """So many requests of the engine have timed out."""
    for _ in range(requests):
        fleet.observe(LegFailed(engine, FailureKind.TIMEOUT), now)


def test_an_engine_that_breaks_every_stream_is_ejected_under_load() -> None:
    """However close together they break: what was asked for after the first counts."""
    fleet = fleet_up(D0, D1)
    for number in range(6):
        break_stream(fleet, asked_at=number * 0.1, now=number * 0.1 + 0.05)
    assert fleet.member(D0).exclusion is Exclusion.EJECTED


def test_an_engine_that_breaks_the_streams_of_clients_that_come_back_is_ejected() -> None:
    fleet = fleet_up(D0, D1)
    for asked_at in (0.0, 2.0):
        for _ in range(48):
            break_stream(fleet, asked_at, asked_at + 1.0)
    assert fleet.member(D0).exclusion is Exclusion.EJECTED


def test_streams_that_break_together_are_one_failure() -> None:
    fleet = fleet_up(D0, D1)
    for number in range(100):
        break_stream(fleet, asked_at=number / 100, now=1.0 + number / 1000)
        fleet.observe(LegDone(D0), 1.0 + number / 1000)
    assert fleet.member(D0).exclusion is None
    assert fleet.member(D0).outlier.total == 101


def test_requests_that_leave_a_stalled_engine_do_not_eject_it() -> None:
    """It is excluded for as long as it is silent, not for thirty seconds more."""
    fleet = fleet_up(D0, D1)
    for _ in range(50):
        fleet.observe(LegFailed(D0, FailureKind.STALLED), 1.0)
    assert fleet.member(D0).exclusion is None
    assert fleet.member(D0).outlier == HEALTHY


def test_an_engine_that_breaks_half_of_its_long_streams_is_ejected() -> None:
    """Each breaks 10 s after it was asked for, and every other one ends well."""
    fleet = fleet_up(D0, D1)
    for tenth in range(300):
        now = tenth / 10
        fleet.observe(LegDone(D1), now)
        if tenth % 2:
            fleet.observe(LegDone(D0), now)
        else:
            break_stream(fleet, now - 10.0, now)
        fleet.tick(now)
    assert fleet.member(D0).outlier.ejections > 0


def test_a_crash_is_one_failure_whatever_its_answers_end_in() -> None:
    """What had no token yet is reset, what had some breaks off."""
    fleet = fleet_up(D0, D1)
    for number in range(10):
        kind = FailureKind.RESET if number == 0 else FailureKind.BROKEN
        fleet.observe(LegFailed(D0, kind, asked_at=number / 10), 2.0)
    assert fleet.member(D0).outlier.streak == 1


def test_requests_that_time_out_together_count_one_by_one() -> None:
    """Each waited for its whole time: an engine that answers none of them is no single crash."""
    fleet = fleet_up(D0, D1)
    for _ in range(5):
        fleet.observe(LegFailed(D0, FailureKind.TIMEOUT, asked_at=0.0), 60.0)
    assert fleet.member(D0).exclusion is Exclusion.EJECTED


@pytest.mark.parametrize("count", [1, 2, 3])
def test_encode_engines_that_all_hang_are_all_ejected(count: int) -> None:
    """For longer and longer, until they answer."""
    engines = [Endpoint(f"http://e{number}:8000", Role.ENCODE) for number in range(count)]
    fleet = fleet_up(*engines)
    for engine in engines:
        hang(fleet, engine, 4, 30.0)
    assert not any(member.exclusion for member in fleet)
    for engine in engines:
        hang(fleet, engine, 1, 30.0)
    for now, is_out in ((59.75, True), (60.0, False)):
        fleet.tick(now)
        assert {member.exclusion is Exclusion.EJECTED for member in fleet} == {is_out}
    for engine in engines:
        hang(fleet, engine, 1, 90.0)
    for now, is_out in ((149.75, True), (150.0, False)):
        fleet.tick(now)
        assert {member.exclusion is Exclusion.EJECTED for member in fleet} == {is_out}
    for engine in engines:
        fleet.observe(LegDone(engine), 151.0)
        hang(fleet, engine, 4, 200.0)
    assert not any(member.exclusion for member in fleet)


def test_the_only_encode_engine_is_not_ejected_for_the_images_that_it_refuses() -> None:
    fleet = fleet_up(E0)
    for _ in range(60):
        fleet.observe(LegAnswered(E0, 500, 0.1, counts_against_engine=True), 1.0)
    hang(fleet, E0, 4, 30.0)
    assert fleet.member(E0).exclusion is None


def test_what_waits_for_an_ejected_encode_engine_leaves_it() -> None:
    fleet = fleet_up(E0)
    hang(fleet, E0, 5, 30.0)
    fleet.tick(30.25)
    assert fleet.member(E0).speed.counts.is_stalled
    fleet.tick(60.0)
    fleet.tick(60.25)
    assert not fleet.member(E0).speed.counts.is_stalled


def test_an_encode_engine_that_restarts_has_let_nothing_time_out() -> None:
    fleet = fleet_up(E0)
    hang(fleet, E0, 5, 30.0)
    for signal in (HealthSignal.UNAVAILABLE, HealthSignal.OK):
        fleet.observe(Probed(E0, signal), 40.0)
    hang(fleet, E0, 4, 90.0)
    assert fleet.member(E0).exclusion is None


@pytest.mark.parametrize("consecutive", [0, 5])
def test_hanging_engines_of_other_roles_and_without_ejection_stay(consecutive: int) -> None:
    engine = D0 if consecutive else E0
    fleet = fleet_up(engine)
    fleet.configure(ExclusionConfig(outliers=OutlierConfig(consecutive=consecutive)))
    hang(fleet, engine, 50, 30.0)
    assert fleet.member(engine).exclusion is None


def test_requests_of_the_engine_before_are_no_failures_of_the_one_now() -> None:
    fleet = fleet_up(D0, D1)
    fleet.apply([Entry(D0, 7), Entry(D1, 1)], 5.0)
    fleet.observe(up(D0), 5.0)
    for _ in range(9):
        fleet.observe(LegFailed(D0, FailureKind.RESET, asked_at=4.0), 6.0)
    assert fleet.member(D0).health.state is State.UP
    fleet.observe(LegFailed(D0, FailureKind.RESET, asked_at=5.5), 6.0)
    assert fleet.member(D0).outlier.streak == 1


def test_errors_of_an_engine_are_not_blamed_on_the_one_that_took_its_place() -> None:
    fleet = fleet_up(D0, D1)
    fleet.apply([Entry(D0, 5, "new"), Entry(D1, 1)], 10.0)
    fleet.observe(Probed(D0, HealthSignal.OK), 10.0)
    for _ in range(20):
        fleet.observe(LegAnswered(D0, 500, 3.0), 12.0)  # asked before it came
    assert (fleet.member(D0).exclusion, fleet.member(D0).last_error) == (None, None)
    for _ in range(20):
        fleet.observe(LegAnswered(D0, 500, 1.0), 12.0)
    assert fleet.member(D0).exclusion is Exclusion.EJECTED


def shut_down(fleet: Fleet, now: float = 1.0) -> None:
    """D0 refuses a request because it shuts down, and its health stays good."""
    fleet.observe(LegFailed(D0, FailureKind.SHUTTING_DOWN, now), now)
    fleet.observe(up(D0), now + 1.0)


def test_an_engine_that_shuts_down_drains_although_its_health_is_good() -> None:
    fleet = fleet_up(D0, D1)
    shut_down(fleet)
    assert fleet.member(D0).health.state is State.DRAINING
    assert fleet.member(D0).speed.counts.hands_over
    assert fleet.member(D0).exclusion is None
    assert not fleet.member(D0).outlier.total


def test_its_successor_is_used_as_soon_as_it_is_up() -> None:
    fleet = fleet_up(D0, D1)
    shut_down(fleet)
    for _ in range(3):
        fleet.observe(Probed(D0, HealthSignal.FAILED), 5.0)
    assert fleet.member(D0).health.state is State.DOWN
    fleet.observe(up(D0), 6.0)
    assert fleet.member(D0).health.state is State.UP
    assert not fleet.member(D0).speed.counts.hands_over


def test_an_engine_that_does_not_end_is_tried_again() -> None:
    fleet = fleet_up(D0, D1)
    shut_down(fleet)
    fleet.observe(up(D0), 1.0 + SHUTDOWN_SECONDS)
    assert fleet.member(D0).health.state is State.UP


def test_other_workers_learn_that_it_shuts_down() -> None:
    fleet, event = fleet_up(D0, D1), LegFailed(D0, FailureKind.SHUTTING_DOWN, 1.0)
    shared = for_workers(event)
    assert shared is event
    fleet.observe_shared(shared, 1.0)
    assert fleet.member(D0).health.state is State.DRAINING
