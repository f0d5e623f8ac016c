"""What the fleet learns from events, its own and those of other processes."""

import math
from typing import Any

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
)
from router.core.fleet.fleet import Fleet
from router.core.fleet.member import Exclusion, Member
from router.core.health import HealthSignal, HealthThresholds, State
from router.core.membership.entry import Entry
from router.core.speed.outlier import HEALTHY
from router.core.speed.speed_estimator import TICK_SECONDS
from router.core.values import Endpoint, FailureKind, Gauges, Role
from tests.core.fixtures import D0, D1, D2, D3, D4, P0
from tests.core.fleets import NO_ENDPOINTS, card, eject, fleet_of, fleet_up, full, taking, up

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
def test_a_bad_or_slow_answer_says_nothing_of_an_engines_presence(kind: FailureKind) -> None:
    fleet = fleet_up(D0)
    for _ in range(9):
        fleet.observe(LegFailed(D0, kind), 0.0)
    assert fleet.member(D0).health.state is State.UP


@pytest.mark.parametrize("kind", [FailureKind.EXHAUSTED, FailureKind.NO_ROOM])
def test_an_engine_that_the_router_had_no_means_for_has_not_failed(kind: FailureKind) -> None:
    fleet = fleet_up(D0)
    before = fleet.member(D0).outlier
    for _ in range(9):
        fleet.observe(LegFailed(D0, kind), 0.0)
    member = fleet.member(D0)
    assert member.health.state is State.UP
    assert (member.outlier, member.last_error) == (before, None)


@pytest.mark.parametrize("status", [200, 400, 503])
def test_an_answer_clears_the_doubts(status: int) -> None:
    fleet = fleet_up(D0)
    for event in (REFUSED, REFUSED, LegAnswered(D0, status, 0.1), REFUSED, REFUSED):
        fleet.observe(event, 0.0)
    assert fleet.member(D0).health.state is State.UP


def test_an_answer_does_not_bring_up_what_probes_call_down() -> None:
    fleet = fleet_of(D0)
    fleet.observe(ANSWERED, 0.0)
    assert fleet.member(D0).health.state is State.STARTING


def test_an_answer_does_not_bring_back_an_engine_that_drains() -> None:
    fleet = fleet_up(D0)
    for event in (Probed(D0, HealthSignal.UNAVAILABLE), REFUSED, ANSWERED):
        fleet.observe(event, 0.0)
    assert fleet.member(D0).health.state is State.DRAINING


def test_a_good_probe_of_an_engine_that_is_up_changes_nothing_that_is_known_of_it() -> None:
    fleet = fleet_up(D0)
    fleet.observe(Scraped(D0, Gauges(running=7), 0), 0.0)
    fleet.observe(up(D0), 1.0)
    assert fleet.member(D0).other_requests == 7


def tells(version: str | None) -> Probed:
    """A good probe of D0."""
    return Probed(D0, HealthSignal.OK, version=version)


def test_an_engine_that_comes_back_has_no_version_until_it_tells_one() -> None:
    fleet = fleet_up(P0, D0)
    fleet.observe(Probed(P0, HealthSignal.OK, version="1"), 0.0)
    versions = []
    for event in (tells("2"), Probed(D0, HealthSignal.UNAVAILABLE), tells(None), tells("3")):
        fleet.observe(event, 0.0)
        versions.append((fleet.member(D0).version, fleet.is_mixed))
    assert versions == [("2", True), ("2", True), (None, False), ("3", True)]


def test_a_version_that_cannot_be_read_while_the_engine_is_up_stays_known() -> None:
    fleet = fleet_up(D0)
    for event in (tells("1"), tells(None)):
        fleet.observe(event, 0.0)
    assert fleet.member(D0).version == "1"


@pytest.mark.parametrize("version", ["1", None])
def test_the_same_version_again_changes_nothing_that_is_known_of_an_engine(
    version: str | None,
) -> None:
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
    fleet.lease(D1, 10)
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


def test_what_another_engine_at_its_url_had_too_many_of_is_not_this_ones() -> None:
    fleet = fleet_up(D0, D1)
    fleet.member(D0).joined_at = 5.0
    fleet.observe(LegAnswered(D0, 503, 1.5, is_own_doing=False, full_seconds=0.5), 6.0)
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
def test_an_engine_that_is_known_to_be_full_gets_a_request_only_if_all_are(
    history: list[tuple[Endpoint, str, float]],
) -> None:
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
def test_what_says_nothing_of_an_engine_is_ignored(event: Event) -> None:
    fleet = fleet_up(D0)
    fleet.observe(event, 0.0)
    assert fleet.is_ready


@pytest.mark.parametrize("status", [200, 400, 404, 429, 499])
def test_a_clients_errors_are_no_failures(status: int) -> None:
    fleet = fleet_up(D0, D1)
    for _ in range(20):
        fleet.observe(LegAnswered(D0, status, 0.1), 0.0)
    assert fleet.member(D0).exclusion is None


def test_what_may_be_another_engines_doing_is_blamed_on_nobody() -> None:
    fleet = fleet_up(D0, D1)
    for _ in range(20):
        fleet.observe(LegAnswered(D0, 500, 0.1, is_own_doing=False), 0.0)
    assert fleet.member(D0).exclusion is None


def test_a_good_answer_ends_a_streak() -> None:
    fleet = fleet_up(D0, D1)
    for _ in range(10):
        fleet.observe(LegAnswered(D0, 500, 0.1), 0.0)
        fleet.observe(LegDone(D0), 0.0)
    assert fleet.member(D0).exclusion is None


def test_a_failed_prefill_says_nothing_of_the_decode_engine_at_that_address() -> None:
    prefill, decode = Endpoint("http://x", Role.PREFILL), Endpoint("http://x", Role.DECODE)
    fleet = fleet_up(prefill, decode, P0, D0)
    eject(fleet, prefill)
    assert fleet.member(prefill).exclusion is Exclusion.EJECTED
    assert fleet.member(decode).exclusion is None
    assert fleet.member(decode).outlier == HEALTHY


def others(gauges: Gauges | None, own: int = 0, at: float = 0.0, now: float = 0.0) -> int | None:
    """What a fleet says of the requests of others after one scrape."""
    fleet = fleet_up(D0)
    fleet.observe(Scraped(D0, gauges, own), at)
    (it,) = fleet.candidates(Role.DECODE, None, NO_ENDPOINTS, now)
    return it.other_requests


@pytest.mark.parametrize(
    ("gauges", "own", "expected"),
    [
        (Gauges(running=5, waiting=2), 3, 4),
        (Gauges(running=5), 3, 2),
        (Gauges(running=5, waiting=2), 0, 7),
        (Gauges(running=1, waiting=0), 3, 0),
        (Gauges(waiting=2), 0, None),
        (Gauges(), 0, None),
        (None, 0, None),
    ],
)
def test_others_are_what_the_gauges_count_beyond_our_own(
    gauges: Gauges | None, own: int, expected: int | None
) -> None:
    assert others(gauges, own) == expected


@pytest.mark.parametrize(("now", "expected"), [(10.0, 7), (15.0, 7), (15.001, None), (99.0, None)])
def test_a_scrape_expires_by_age(now: float, expected: int | None) -> None:
    assert others(Gauges(running=7), at=10.0, now=now) == expected


def test_a_failed_scrape_takes_the_last_one_back() -> None:
    fleet = fleet_up(D0)
    fleet.observe(Scraped(D0, Gauges(running=7), 0), 0.0)
    fleet.observe(Scraped(D0, None, 0), 1.0)
    assert fleet.member(D0).gauges is None
    (it,) = fleet.candidates(Role.DECODE, None, NO_ENDPOINTS, 1.0)
    assert it.other_requests is None


def scraped(fleet: Fleet, now: float, running: int, waiting: int) -> float:
    """The slots after a scrape and a tick."""
    own = fleet.ledger.in_flight(D0)
    fleet.observe(Scraped(D0, Gauges(running=running, waiting=waiting), own), now)
    for tick in range(4):
        fleet.tick(now + tick * TICK_SECONDS)
    return fleet.member(D0).view.slots


def test_a_queue_of_others_in_the_gauges_tells_the_slots() -> None:
    fleet = fleet_up(D0)
    assert scraped(fleet, 0.0, 64, 5) == math.inf
    assert scraped(fleet, 1.0, 64, 5) == 64
    assert scraped(fleet, 2.0, 60, 0) == 64


def test_gauges_tell_no_slots_where_requests_wait_for_kv_caches() -> None:
    fleet = fleet_up(D0, P0)
    assert scraped(fleet, 0.0, 64, 5) == math.inf
    assert scraped(fleet, 1.0, 64, 5) == math.inf


def test_what_this_router_sees_for_itself_needs_no_gauges() -> None:
    """Its own streams tell better: at the start of a wave a gauge shows a queue where none is."""
    fleet = fleet_up(D0)
    for number in range(9):
        fleet.leg(fleet.lease(D0, 1), number / 10, tracks_first_token=True).first_token(1.0)
    for now in (1.0, 2.0, 3.0):
        assert scraped(fleet, now, 4, 5) == math.inf


def test_others_follow_the_gauges_half_way_at_a_time() -> None:
    fleet = fleet_up(D0)
    seen = []
    for running in (10, 90, 90, 90, 90, 89, 0, 44):
        fleet.observe(Scraped(D0, Gauges(running=running, waiting=0), 0), 0.0)
        seen.append(fleet.member(D0).other_requests)
    assert seen == [10, 50, 70, 80, 85, 87, 43, 44]


@pytest.mark.parametrize(("step", "expected"), [(0, 0), (1, 30)])
def test_requests_in_gauges_that_an_engine_left_standing_are_gone(step: int, expected: int) -> None:
    """All its requests were aborted; engines that generate are believed."""
    fleet = fleet_up(D0)
    for number in range(20):
        gauges = Gauges(running=30, waiting=0, generated=900 + step * number)
        fleet.observe(Scraped(D0, gauges, 0), float(number))
    assert fleet.member(D0).other_requests == expected


def test_gauges_stand_for_a_request_that_waits_there() -> None:
    fleet = fleet_up(D0)
    for number in range(20):
        fleet.observe(Scraped(D0, Gauges(running=30, waiting=0, generated=9), 1), float(number))
    assert fleet.member(D0).other_requests == 29


def test_requests_that_have_just_ended_are_not_somebody_elses() -> None:
    """A scrape finds the gauges of a moment ago; half a second later they must be true."""
    fleet = fleet_up(D0)
    leases = [fleet.lease(D0, 1) for _ in range(100)]
    fleet.tick(0.25)
    for lease in leases:
        lease.release()
    for tick in (0.25, 0.5):
        fleet.tick(tick)
        fleet.observe(Scraped(D0, Gauges(running=105, waiting=0), 0), tick)
        assert fleet.member(D0).other_requests == 5 if tick == 0.25 else 55


def test_an_engine_that_comes_back_has_nothing_of_its_last_life() -> None:
    fleet = fleet_up(D0, D1)
    for now in (0.0, 1.0):
        fleet.observe(Scraped(D0, Gauges(running=64, waiting=9, generated=5), 0), now)
    for _ in range(3):
        fleet.observe(Probed(D0, HealthSignal.FAILED), 2.0)
    fleet.observe(up(D0), 3.0)
    fleet.tick(3.25)
    member = fleet.member(D0)
    assert (member.view.slots, member.other_requests, member.counted) == (math.inf, None, None)


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
    """Each process counts its own; the ejection that they lead to is what the others hear of."""
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
def test_an_ejection_by_another_process_ends_here_too_when_all_fail_as_often(
    streak: int, left: list[Endpoint]
) -> None:
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


def test_and_those_that_other_processes_tell_too() -> None:
    fleet = fleet_up(D0)
    fleet.observe_shared(up(D1), 2.0)
    assert [member.endpoint for member in fleet] == [D0]


# How many engines may be excluded is kept in step with what excludes them, adds them and so on.

ENGINES = (D0, D1, D2, D3, D4)
ONES = st.sampled_from(ENGINES)
STEPS = st.one_of(
    st.tuples(st.just("fails"), ONES),
    st.tuples(st.just("ejected elsewhere"), ONES),
    st.tuples(st.just("down"), ONES),
    st.tuples(st.just("up"), ONES),
    st.tuples(st.just("replaced"), ONES),
    st.tuples(st.just("in the fleet"), st.sets(ONES, min_size=1)),
    st.tuples(st.just("drained"), st.sets(ONES)),
    st.tuples(st.just("give tokens"), st.sets(ONES)),
)


class Decoding:
    """A decode pool with a stream on each engine, and what happens to it."""

    def __init__(self) -> None:
        self.fleet = fleet_up(*ENGINES)
        self.now, self.version = 0.0, 0
        self.here, self.drained = set(ENGINES), set[Endpoint]()
        for endpoint in ENGINES:
            self.happens("up", endpoint)
        self.open_streams()
        self.run(1.0, set(ENGINES))

    def open_streams(self) -> None:
        """One on each engine that is up."""
        for member in self.fleet:
            lease = self.fleet.lease(member.endpoint, 10)
            self.fleet.leg(lease, self.now, tracks_first_token=True).first_token(self.now)

    def run(self, seconds: float, giving: set[Endpoint]) -> None:
        """Let time pass, in which some engines give tokens."""
        for _ in range(round(seconds / TICK_SECONDS)):
            self.now += TICK_SECONDS
            for member in self.fleet:
                if member.endpoint in giving:
                    member.speed.tokens += 10
            self.fleet.tick(self.now)

    def happens(self, what: str, whom: Any) -> None:
        """One step."""
        now, fleet = self.now, self.fleet
        if what == "give tokens":
            self.run(3.0, whom)
        elif what == "in the fleet":
            self.here = whom
            self.apply()
            self.open_streams()
        elif what == "drained":
            self.drained = whom
            self.apply()
        elif what == "fails":
            for _ in range(5):
                fleet.observe(LegAnswered(whom, 500, 0.1), now)
        elif what == "ejected elsewhere":
            fleet.observe_shared(Ejected(whom, now, now + 4.0, "it failed"), now)
        elif what == "down":
            fleet.observe(Probed(whom, HealthSignal.UNAVAILABLE), now)
        else:
            self.version += what == "replaced"
            fleet.observe(Probed(whom, HealthSignal.OK, version=str(self.version)), now)

    def apply(self) -> None:
        """A new roster."""
        listed = [e for e in ENGINES if e in self.here]
        rows = [Entry(e, ENGINES.index(e), is_draining=e in self.drained) for e in listed]
        self.fleet.apply(rows, self.now)

    def may_exclude(self, member: Member) -> bool:
        """The definition: with it, no more than half are excluded."""
        up = [m for m in self.fleet if m.is_usable]
        return sum(m.is_blocked for m in up if m is not member) + 1 <= 0.5 * len(up)


@given(st.lists(STEPS, max_size=15))
def test_who_may_be_excluded_is_what_counting_all_engines_says(
    steps: list[tuple[str, Any]],
) -> None:
    pool = Decoding()
    for what, whom in steps:
        pool.happens(what, whom)
        for member in pool.fleet:
            expected = pool.may_exclude(member)
            assert pool.fleet._monitors[Role.DECODE].limit.allows(member) == expected, what
