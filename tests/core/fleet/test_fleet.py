"""What the fleet learns from events, its own and those of other processes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.events import (
    Ejected,
    Event,
    FellBack,
    LegAnswered,
    LegDone,
    LegFailed,
    Probed,
    Scraped,
    SpeedProbed,
)
from router.core.fleet.selection import Selection
from router.core.health import HealthSignal, HealthThresholds, State
from router.core.judge.outlier import HEALTHY
from router.core.judge.verdict import Exclusion
from router.core.membership.entry import Entry
from router.core.values import Endpoint, FailureKind, Gauges, Role, TransferSource
from tests.core.fixtures import D0, D1, D2, P0
from tests.core.fleets import card, eject, fleet_of, fleet_up, full, taking, up

REFUSED = LegFailed(D0, FailureKind.REFUSED)
ANSWERED = LegAnswered(D0, 200, 0.1)


@pytest.mark.parametrize("kind", [FailureKind.REFUSED, FailureKind.RESET])
def test_connections_that_fail_three_times_in_a_row_bring_an_engine_down(kind: FailureKind) -> None:
    fleet = fleet_up(D0)
    states = []
    for _ in range(3):
        fleet.observe(LegFailed(D0, kind), 0.0)
        states.append(fleet.member(D0).health.state)
    assert states == [State.UP, State.UP, State.DOWN]


@pytest.mark.parametrize("kind", [FailureKind.BROKEN, FailureKind.TIMEOUT])
def test_a_bad_or_slow_answer_is_no_evidence_of_an_engines_presence(kind: FailureKind) -> None:
    fleet = fleet_up(D0)
    for _ in range(9):
        fleet.observe(LegFailed(D0, kind), 0.0)
    assert fleet.member(D0).health.state is State.UP


@pytest.mark.parametrize("kind", [FailureKind.EXHAUSTED, FailureKind.NO_ROOM])
def test_the_routers_own_exhaustion_is_no_failure_of_an_engine(kind: FailureKind) -> None:
    fleet = fleet_up(D0)
    before = fleet.member(D0).outlier
    for _ in range(9):
        fleet.observe(LegFailed(D0, kind), 0.0)
    member = fleet.member(D0)
    assert member.health.state is State.UP
    assert (member.outlier, member.last_error) == (before, None)


WHY = "it answered a speed probe with 400: no"


@pytest.mark.parametrize(
    ("event", "failed"),
    [
        (SpeedProbed(D0, "failed", WHY), 2),
        (SpeedProbed(D0, "failed"), 1),  # the router had no means for it
        (SpeedProbed(D0, "timeout"), 0),
        (SpeedProbed(D0, "ok"), 0),
        (SpeedProbed(D0), 0),
    ],
)
def test_failed_speed_probes_are_counted_in_a_row(event: SpeedProbed, failed: int) -> None:
    fleet = fleet_up(D0)
    member = fleet.member(D0)
    fleet.observe(SpeedProbed(D0, "failed", WHY), 1.0)
    fleet.observe_shared(event, 2.0)
    assert (member.failed_speed_probes, member.last_error) == (failed, WHY)


def test_an_engine_that_joins_has_no_failed_speed_probes_of_the_one_before() -> None:
    fleet = fleet_up(D0)
    fleet.observe(SpeedProbed(D0, "failed", WHY), 1.0)
    for signal in (*[HealthSignal.FAILED] * 3, HealthSignal.OK):
        fleet.observe(Probed(D0, signal), 2.0)
    assert fleet.member(D0).failed_speed_probes == 0


@pytest.mark.parametrize("status", [200, 400, 503])
def test_an_answer_clears_the_doubts(status: int) -> None:
    fleet = fleet_up(D0)
    for event in (REFUSED, REFUSED, LegAnswered(D0, status, 0.1), REFUSED, REFUSED):
        fleet.observe(event, 0.0)
    assert fleet.member(D0).health.state is State.UP


def test_an_answer_does_not_bring_up_an_engine_that_probes_find_down() -> None:
    fleet = fleet_of(D0)
    fleet.observe(ANSWERED, 0.0)
    assert fleet.member(D0).health.state is State.STARTING


def test_an_answer_does_not_bring_back_an_engine_that_drains() -> None:
    fleet = fleet_up(D0)
    for event in (Probed(D0, HealthSignal.UNAVAILABLE), REFUSED, ANSWERED):
        fleet.observe(event, 0.0)
    assert fleet.member(D0).health.state is State.DRAINING


def test_a_good_probe_of_an_up_engine_keeps_its_measurements() -> None:
    fleet = fleet_up(D0)
    fleet.observe(Scraped(D0, Gauges(running=7), 0), 0.0)
    fleet.observe(up(D0), 1.0)
    assert fleet.member(D0).other_requests == 7


def tells(version: str | None) -> Probed:
    """A good probe of D0."""
    return Probed(D0, HealthSignal.OK, version=version)


def test_a_returning_engine_has_no_version_until_it_reports_one() -> None:
    fleet = fleet_up(P0, D0)
    fleet.observe(Probed(P0, HealthSignal.OK, version="1"), 0.0)
    versions = []
    for event in (tells("2"), Probed(D0, HealthSignal.UNAVAILABLE), tells(None), tells("3")):
        fleet.observe(event, 0.0)
        versions.append((fleet.member(D0).version, fleet.models.is_mixed))
    assert versions == [("2", True), ("2", True), (None, False), ("3", True)]


def test_a_version_that_cannot_be_read_while_the_engine_is_up_stays_known() -> None:
    fleet = fleet_up(D0)
    for event in (tells("1"), tells(None)):
        fleet.observe(event, 0.0)
    assert fleet.member(D0).version == "1"


def test_the_id_of_a_prefill_engine_is_known_until_it_may_be_another_process() -> None:
    first, second = (TransferSource("http://p0:8998", name) for name in ("1", "2"))
    failed = Probed(P0, HealthSignal.FAILED)
    late = Probed(P0, HealthSignal.TIMED_OUT)
    fleet = fleet_up(P0)
    known = []
    for event in (
        *(Probed(P0, HealthSignal.OK, transfer_source=first), up(P0), late, up(P0)),
        *(failed, up(P0), Probed(P0, HealthSignal.OK, transfer_source=first)),
        *(Probed(P0, HealthSignal.OK, transfer_source=second), LegFailed(P0, FailureKind.REFUSED)),
    ):
        fleet.observe(event, 0.0)
        known.append(fleet.member(P0).transfer_source)
    assert known == [first, first, first, first, None, None, first, second, None]
    assert fleet.member(P0).health.state is State.UP


@pytest.mark.parametrize("version", ["1", None])
def test_same_version_again_keeps_measurements(version: str | None) -> None:
    fleet = fleet_up(D0)
    for event in (Scraped(D0, Gauges(running=7), 0), tells("1"), tells(version)):
        fleet.observe(event, 0.0)
    assert fleet.member(D0).other_requests == 7


def test_another_version_is_another_engine_of_which_nothing_is_known() -> None:
    fleet = fleet_up(D0, D1)
    fleet.observe(tells("1"), 0.0)
    fleet.observe(Scraped(D0, Gauges(running=7), 0), 0.0)
    eject(fleet, D0)
    assert taking(fleet, Role.DECODE) == [D1]
    Selection(fleet).lease(D1, 10)
    fleet.observe(tells("2"), 9.0)
    member = fleet.member(D0)
    assert (member.exclusion, member.other_requests) == (None, None)
    assert (member.version, member.returned_at) == ("2", 9.0)
    assert taking(fleet, Role.DECODE) == [D0, D1]


@pytest.mark.parametrize(
    ("event", "has_room"),
    [
        (LegAnswered(D0, 200, 0.5), True),
        (LegAnswered(D0, 200, 1.5), False),  # it took that one before
        (LegAnswered(D0, 404, 0.1), False),
        (LegAnswered(D0, 500, 0.1), False),
        (LegAnswered(D0, 503, 0.1), False),
        (LegAnswered(D0, 503, 0.1, counts_against_engine=False, full_seconds=9.0), False),  # still
        (LegDone(D0), False),
        (Probed(D0, HealthSignal.OK, version="2"), True),  # another engine
    ],
)
def test_an_engine_is_full_until_it_takes_a_request(event: Event, has_room: bool) -> None:
    fleet = fleet_up(D0, D1)
    fleet.observe(Probed(D0, HealthSignal.OK, version="1"), 0.0)
    full(fleet, D0, 1.0, seconds=9.0)
    assert taking(fleet, Role.DECODE, now=2.0) == [D1]
    fleet.observe(event, 2.0)
    assert taking(fleet, Role.DECODE, now=2.0) == ([D0, D1] if has_room else [D1])
    member = fleet.member(D0)
    assert (member.full_until == -math.inf) is has_room


def test_a_replaced_engines_excess_requests_do_not_count() -> None:
    fleet = fleet_up(D0, D1)
    fleet.member(D0).joined_at = 5.0
    fleet.observe(LegAnswered(D0, 503, 1.5, counts_against_engine=False, full_seconds=0.5), 6.0)
    assert taking(fleet, Role.DECODE, now=6.0) == [D0, D1]


@given(
    st.lists(
        st.tuples(
            st.sampled_from((D0, D1, D2)),
            st.sampled_from(("full", "takes", "tick")),
            st.floats(0.0, 1.0),
        )
    )
)
def test_full_engine_is_used_if_all_are_full(history: list[tuple[Endpoint, str, float]]) -> None:
    fleet, now, until = fleet_up(D0, D1, D2), 0.0, dict.fromkeys((D0, D1, D2), 0.0)
    for engine, what, seconds in history:
        now += seconds
        if what == "full":
            full(fleet, engine, now)
            until[engine] = now + 0.5
        elif what == "takes":
            fleet.observe(LegAnswered(engine, 200, 0.0), now)
            until[engine] = 0.0
        fleet.tick(now)
        free = [each for each in until if until[each] <= now]
        assert taking(fleet, Role.DECODE, now=now) == (free or [D0, D1, D2])


@pytest.mark.parametrize("event", [FellBack(Role.DECODE, "reset")])
def test_unrelated_events_are_ignored(event: Event) -> None:
    fleet = fleet_up(D0)
    fleet.observe(event, 0.0)
    assert fleet.is_ready


@pytest.mark.parametrize("status", [200, 400, 404, 429, 499])
def test_a_clients_errors_are_no_failures(status: int) -> None:
    fleet = fleet_up(D0, D1)
    for _ in range(20):
        fleet.observe(LegAnswered(D0, status, 0.1), 0.0)
    assert fleet.member(D0).exclusion is None


def test_failures_possibly_of_another_engine_count_against_none() -> None:
    fleet = fleet_up(D0, D1)
    for _ in range(20):
        fleet.observe(LegAnswered(D0, 500, 0.1, counts_against_engine=False), 0.0)
    assert fleet.member(D0).exclusion is None


def test_a_good_answer_ends_a_streak() -> None:
    fleet = fleet_up(D0, D1)
    for _ in range(10):
        fleet.observe(LegAnswered(D0, 500, 0.1), 0.0)
        fleet.observe(LegDone(D0), 0.0)
    assert fleet.member(D0).exclusion is None


def test_a_failed_prefill_does_not_count_against_the_decode_engine_at_its_address() -> None:
    prefill, decode = Endpoint("http://x", Role.PREFILL), Endpoint("http://x", Role.DECODE)
    fleet = fleet_up(prefill, decode, P0, D0)
    eject(fleet, prefill)
    assert fleet.member(prefill).exclusion is Exclusion.EJECTED
    assert fleet.member(decode).exclusion is None
    assert fleet.member(decode).outlier == HEALTHY


def test_an_engine_that_comes_back_has_nothing_of_its_last_life() -> None:
    fleet = fleet_up(D0, D1)
    for now in (0.0, 1.0):
        fleet.observe(Scraped(D0, Gauges(running=64, waiting=9, generated=5), 0), now)
    for _ in range(3):
        fleet.observe(Probed(D0, HealthSignal.FAILED), 2.0)
    fleet.observe(up(D0), 3.0)
    fleet.tick(3.25)
    member = fleet.member(D0)
    assert (member.view.slots, member.other_requests) == (math.inf, None)
    assert member.scrapes.counted_speed._calibrated is None


def test_a_probe_by_another_process_counts() -> None:
    fleet = fleet_of(D0, D1)
    fleet.observe_shared(up(D0, card("m")), 0.0)
    fleet.observe_shared(Scraped(D0, Gauges(running=5, waiting=1), own=2), 0.0)
    assert taking(fleet, Role.DECODE, "m") == [D0]
    assert fleet.member(D0).other_requests == 4


def test_an_absence_that_another_process_met_counts() -> None:
    fleet = fleet_up(D0, D1)
    for _ in range(HealthThresholds().down_after):
        fleet.observe_shared(LegFailed(D0, FailureKind.REFUSED), 1.0)
    assert taking(fleet, Role.DECODE) == [D1]


def test_other_failures_of_other_processes_do_not_count() -> None:
    """Each process counts its own failures; the others learn only of the ejection."""
    fleet = fleet_up(D0, D1)
    for _ in range(100):
        fleet.observe_shared(LegFailed(D0, FailureKind.TIMEOUT), 1.0)
    assert taking(fleet, Role.DECODE) == [D0, D1]


def test_an_ejection_by_another_process_holds_here_for_its_time() -> None:
    fleet = fleet_up(D0, D1)
    assert taking(fleet, Role.DECODE) == [D0, D1]
    fleet.observe_shared(Ejected(D0, 1.0, 31.0), 1.0)
    fleet.observe_shared(Ejected(D0, 1.0, 99.0), 1.0)  # the echo of another one
    assert taking(fleet, Role.DECODE) == [D1]
    assert fleet.member(D0).exclusion is Exclusion.EJECTED
    fleet.tick(30.9)
    assert taking(fleet, Role.DECODE) == [D1]
    fleet.tick(31.0)
    assert taking(fleet, Role.DECODE) == [D0, D1]


@pytest.mark.parametrize(("streak", "left"), [(5, [D0, D1, D2]), (0, [D1, D2])])
def test_shared_ejection_ends_when_all_fail_alike(streak: int, left: list[Endpoint]) -> None:
    """Only one for failures in a row: a rate has been compared with the others'."""
    fleet = fleet_up(D0, D1, D2)
    fleet.observe_shared(Ejected(D0, 1.0, 31.0, "it failed", streak), 1.0)
    for endpoint in (D1, D2):
        for _ in range(4):
            fleet.observe(LegAnswered(endpoint, 500, 0.1), 2.0)
    fleet.tick(2.0)
    assert taking(fleet, Role.DECODE) == left


def test_an_ejection_by_another_process_shuts_no_more_than_the_share() -> None:
    fleet = fleet_up(D0, D1)
    fleet.observe_shared(Ejected(D0, 1.0, 31.0), 1.0)
    fleet.observe_shared(Ejected(D1, 1.0, 31.0), 1.0)
    assert taking(fleet, Role.DECODE) == [D1]


@pytest.mark.parametrize(
    "event",
    [
        up(D1),
        Scraped(D1, Gauges(running=1), 0),
        LegAnswered(D1, 500, 0.1),
        LegDone(D1),
        LegFailed(D1, FailureKind.REFUSED),
    ],
)
def test_events_of_engines_that_are_gone_are_ignored(event: Event) -> None:
    fleet = fleet_up(D0, D1)
    fleet.apply([Entry(D0, 0)], 1.0)
    fleet.observe(event, 2.0)
    assert not fleet.knows(D1)
    assert fleet.knows(D0)


def test_and_those_of_other_processes_too() -> None:
    fleet = fleet_up(D0)
    fleet.observe_shared(up(D1), 2.0)
    assert [member.endpoint for member in fleet] == [D0]
