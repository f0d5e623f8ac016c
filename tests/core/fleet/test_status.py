"""The operators' log: one line per change of an engine, with cause and engines left."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from router.core.events import LegAnswered, LegFailed, Probed, Scraped, SpeedProbed
from router.core.fleet import status as of
from router.core.fleet.fleet import Fleet
from router.core.fleet.ledger import Ledger
from router.core.fleet.selection import Selection
from router.core.fleet.status import (
    CHANGES_SECONDS,
    FIRST_REMINDER_SECONDS,
    IS_ROUTER,
    MAX_CHANGES,
    MAX_RECENT,
    UNREAD_SECONDS,
    StatusLog,
    pool_status,
)
from router.core.health import HealthSignal, HealthThresholds, State
from router.core.judge.member import Member
from router.core.judge.outlier import Outlier
from router.core.judge.tuning import REPEATED_FAILURES
from router.core.judge.verdict import Exclusion, ExclusionConfig, Stall
from router.core.membership.entry import Entry
from router.core.values import Endpoint, FailureKind, Gauges, Role
from tests.core.fixtures import D0, D1, D2, P0

WHY = "nothing listens there"


class Bench:
    """A fleet and its log; only `pass_` moves time."""

    def __init__(self, *endpoints: Endpoint) -> None:
        self.now = 100.0
        self.fleet = Fleet(endpoints, Ledger(), HealthThresholds(), 5.0)
        self.log = StatusLog(
            *(self.fleet, self.fleet.pool, self.fleet.is_panic, self.now),
            avoids_slow=self.fleet.avoids_slow,
            time_of=str,
        )

    def see(self, endpoint: Endpoint, signal: HealthSignal, times: int = 1) -> None:
        """Probe an engine."""
        error = None if signal is HealthSignal.OK else WHY
        for _ in range(times):
            self.fleet.observe(Probed(endpoint, signal, error=error), self.now)

    def up(self, *endpoints: Endpoint) -> None:
        """Bring engines up, and read the log."""
        for endpoint in endpoints:
            self.see(endpoint, HealthSignal.OK)
        self.told()

    def refuse(self, endpoint: Endpoint) -> None:
        """Requests find that the engine is gone."""
        for _ in range(HealthThresholds().down_after):
            self.fleet.observe(LegFailed(endpoint, FailureKind.REFUSED, cause=WHY), self.now)

    def told(self) -> list[str]:
        """The lines since the last time, warnings with a mark."""
        return [("! " if n.is_bad else "") + n.text for n in self.log.notices(self.now)]

    def apply(self, *entries: Entry) -> None:
        """Change the fleet."""
        self.fleet.apply(entries, self.now)

    def pass_(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


def test_engines_that_come_up_are_logged_once() -> None:
    bench = Bench(P0, D0)
    assert bench.told() == []
    bench.see(P0, HealthSignal.OK)
    bench.see(D0, HealthSignal.OK)
    assert bench.told() == [
        "prefill http://p0:8000 is up; 1 of 1 prefill engines up",
        "decode http://d0:8000 is up; 1 of 1 decode engines up",
    ]
    assert bench.told() == []


def test_an_engine_found_down_by_requests_is_a_warning_with_cause_and_engines_left() -> None:
    bench = Bench(D0, D1, D2)
    bench.up(D0, D1, D2)
    bench.refuse(D1)
    assert bench.told() == [
        f"! decode http://d1:8000 is down: it was up until 100.0; {WHY}; 2 of 3 decode engines up"
    ]


def test_reminders_of_a_down_engine_have_its_last_up_time() -> None:
    bench = Bench(D0)
    bench.up(D0)
    bench.pass_(11)
    bench.refuse(D0)
    bench.told()
    bench.pass_(FIRST_REMINDER_SECONDS)
    [line] = bench.told()
    assert f"is still down, for 10 s: it was up until 111.0; {WHY}; " in line
    bench.see(D0, HealthSignal.OK)
    assert "was up" not in bench.told()[0]


def test_a_pool_is_counted_once_for_all_the_lines_of_a_tick() -> None:
    bench = Bench(P0, D0, D1)
    bench.up(P0, D0, D1)
    counted: list[Role] = []

    def pool(role: Role) -> Sequence[Member]:
        counted.append(role)
        return bench.fleet.pool(role)

    bench.log = StatusLog(
        *(bench.fleet, pool, bench.fleet.is_panic, bench.now),
        avoids_slow=bench.fleet.avoids_slow,
        time_of=str,
    )
    for engine in (D0, D1, P0):
        bench.refuse(engine)
    assert [line.endswith(" engines up") for line in bench.told()] == [True] * 3
    assert sorted(counted) == [Role.DECODE, Role.PREFILL]
    bench.see(D0, HealthSignal.OK)
    assert bench.told()[0].endswith("1 of 2 decode engines up")


def test_its_return_is_logged_with_the_downtime() -> None:
    bench = Bench(D0)
    bench.up(D0)
    bench.see(D0, HealthSignal.UNAVAILABLE)
    bench.told()
    bench.pass_(7.25)
    bench.see(D0, HealthSignal.OK)
    assert bench.told() == [
        "decode http://d0:8000 is up again after 7.2 s draining; 1 of 1 decode engines up"
    ]


def test_an_engine_that_never_comes_up_is_mentioned_ever_more_rarely() -> None:
    bench = Bench(D0)
    times = []
    for second in range(2000):
        bench.see(D0, HealthSignal.FAILED)
        for line in bench.told():
            times.append(second)
            assert line == (
                f"! decode http://d0:8000 is still starting, for {second} s: {WHY}; "
                "0 of 1 decode engines up"
            )
        bench.pass_(1)
    assert times == [10, 20, 40, 80, 160, 320, 640, 1280, 1920]


def test_an_engine_that_flaps_does_not_flood_the_log() -> None:
    bench = Bench(D0)
    bench.up(D0)
    lines = []
    for _ in range(20):
        bench.see(D0, HealthSignal.FAILED, 3)
        lines += bench.told()
        bench.see(D0, HealthSignal.OK)
        lines += bench.told()
    assert len(lines) == MAX_CHANGES - 1  # one was for its coming up
    bench.see(D0, HealthSignal.FAILED, 3)
    bench.pass_(CHANGES_SECONDS)
    assert bench.told() == [
        f"! decode http://d0:8000 is down after 36 changes that are not logged: it was up until "
        f"100.0; {WHY}; 0 of 1 decode engines up"
    ]


def test_an_exclusion_is_logged_with_its_cause() -> None:
    bench = Bench(D0, D1)
    bench.up(D0, D1)
    ejected, stalled = bench.fleet.member(D0), bench.fleet.member(D1)
    bench.fleet.observe(LegAnswered(D0, 500, 0.1), bench.now)
    ejected.outlier = Outlier(since=90.0, until=130.0)
    stalled.verdict = replace(stalled.verdict, stall=Stall(95.0))
    assert bench.told() == [
        "! decode http://d0:8000 is ejected: it fails too often; the last time it "
        "answered a request with 500; it gets no new requests for a while; 0 of 2 decode engines "
        "up",
        "! decode http://d1:8000 is stalled: it has open streams and produces no tokens; it gets "
        "no new requests until it produces a token; 0 of 2 decode engines up",
    ]
    assert (of.since(ejected), of.since(stalled)) == (90.0, 95.0)


@pytest.mark.parametrize(
    ("roles", "treatment"),
    [
        (Role, "it gets only requests that it would finish first, and speed probes"),
        ((), "it gets its share of requests, because the strategy does not avoid it"),
    ],
    ids=["shortest_expected_delay", "another strategy"],
)
def test_a_slow_engine_counts_as_up(roles: Iterable[Role], treatment: str) -> None:
    bench = Bench(D0)
    bench.fleet.configure(ExclusionConfig(speed_roles=frozenset(roles)))
    bench.up(D0)
    slow = bench.fleet.member(D0)
    slow.verdict = replace(slow.verdict, slow_since=98.0)
    slow.view.slowdown = 8.0
    assert bench.told() == [
        "! decode http://d0:8000 is slow: it takes 8.0 times the pool's median; "
        f"{treatment}; 1 of 1 decode engines up"
    ]
    assert of.since(slow) == 98.0
    bench.pass_(20)
    assert bench.told() == []  # no reminders: it serves


def test_a_down_engine_is_not_called_excluded() -> None:
    bench = Bench(D0)
    bench.up(D0)
    member = bench.fleet.member(D0)
    member.verdict = replace(member.verdict, stall=Stall(95.0))
    bench.see(D0, HealthSignal.FAILED, 3)
    assert (of.status(member), of.since(member)) == (State.DOWN, bench.now)


def test_a_healthy_engine_has_no_cause_whatever_failed_before() -> None:
    bench = Bench(D0)
    bench.see(D0, HealthSignal.FAILED)
    assert of.cause(bench.fleet.member(D0)) == WHY
    bench.up(D0)
    assert of.cause(bench.fleet.member(D0)) is None
    assert bench.fleet.member(D0).last_error == WHY


@pytest.mark.parametrize(
    ("kind", "text"),
    [(FailureKind.BROKEN, "it broke an answer off"), (FailureKind.REFUSED, "it refused a connect")],
)
def test_a_failure_without_a_cause_is_logged_by_its_kind(kind: FailureKind, text: str) -> None:
    bench = Bench(D0)
    bench.fleet.observe(LegFailed(D0, kind), bench.now)
    assert str(bench.fleet.member(D0).last_error).startswith(text)
    bench.fleet.observe_shared(LegFailed(D0, FailureKind.RESET), bench.now)
    assert (
        bench.fleet.member(D0).last_error == "it closed a connection before it answered a request"
    )


def test_a_pool_is_described_in_one_line() -> None:
    bench = Bench(D0, D1, D2)
    bench.up(D0, D1, D2)
    pool = bench.fleet.pool(Role.DECODE)
    assert pool_status(pool) == "3 of 3 up"
    bench.see(D0, HealthSignal.FAILED, 3)
    bench.see(D1, HealthSignal.FAILED, 3)
    bench.fleet.member(D2).outlier = Outlier(since=1.0, until=130.0)
    assert pool_status(pool) == "0 of 3 up: 2 down, 1 ejected"
    assert Exclusion.EJECTED in {of.status(member) for member in pool}


def test_an_ejected_engine_is_excluded_since_its_ejection() -> None:
    bench = Bench(D0)
    bench.up(D0)
    member = bench.fleet.member(D0)
    member.outlier = Outlier(since=7.0, until=37.0)
    assert of.exclusion_since(member) == 7.0
    assert of.exclusion_since(Bench(D1).fleet.member(D1)) is None


def test_changes_are_kept_for_later_viewers_but_not_reminders() -> None:
    bench = Bench(D0)
    bench.up(D0)
    bench.pass_(1.0)
    bench.see(D0, HealthSignal.FAILED, 3)
    bench.told()
    bench.pass_(FIRST_REMINDER_SECONDS)
    [reminder] = bench.told()
    assert "is still down" in reminder
    assert [(at, notice.is_bad) for at, notice in bench.log.recent] == [
        (100.0, False),
        (101.0, True),
    ]
    assert bench.log.recent[-1][1].text.startswith("decode http://d0:8000 is down")


def test_so_many_changes_are_kept_and_no_more() -> None:
    bench = Bench(D0)
    for _ in range(MAX_RECENT):
        bench.pass_(CHANGES_SECONDS)
        bench.up(D0)
        bench.see(D0, HealthSignal.FAILED, 3)
        bench.told()
    assert len(bench.log.recent) == MAX_RECENT
    assert bench.log.recent[-1][0] == bench.now


# What is in prefix caches.


def far_off(bench: Bench, *, is_far_off: bool) -> None:
    """The engine's counters have shown it for a while."""
    trust = bench.fleet.member(D0).prompts.trust
    trust.is_measured, trust.is_far_off = True, is_far_off
    trust.share = 0.12 if is_far_off else 1.0


def test_wrong_predictions_are_logged_once_and_so_is_their_end() -> None:
    bench = Bench(D0)
    bench.up(D0)
    far_off(bench, is_far_off=True)
    (line,) = bench.told()
    assert line.startswith(
        "! decode http://d0:8000 finds 12% of the prompt tokens that its prefix "
    )
    assert "--enable-prefix-caching" in line
    bench.pass_(90.0)
    assert bench.told() == []
    far_off(bench, is_far_off=False)
    assert bench.told() == ["decode http://d0:8000 finds what is predicted again after 90 s"]
    assert bench.told() == []


def test_a_restarted_engine_is_not_called_right_before_anything_is_known() -> None:
    bench = Bench(D0)
    bench.up(D0)
    far_off(bench, is_far_off=True)
    bench.told()
    bench.fleet.member(D0).prompts.forget()
    assert bench.told() == []
    far_off(bench, is_far_off=True)
    assert len(bench.told()) == 1


GAUGES = "the gauges of decode http://d0:8000"


def scrape(bench: Bench, error: str | None) -> None:
    """Read an engine's gauges; `error`: in vain."""
    gauges = None if error else Gauges(running=1)
    bench.fleet.observe(Scraped(D0, gauges, 0, error), bench.now)


@pytest.mark.parametrize("error", ["/metrics answers 404", None])
def test_unreadable_gauges_are_logged_once_and_so_is_their_end(error: str | None) -> None:
    bench = Bench(D0)
    bench.up(D0)
    bench.fleet.observe(Scraped(D0, None, 0, error), bench.now)
    bench.pass_(UNREAD_SECONDS - 1)
    assert bench.told() == []
    bench.pass_(1.0)
    [line] = bench.told()
    assert line.startswith(f"! {GAUGES} cannot be read")
    assert line.endswith(error or "not seen")
    bench.pass_(90.0)
    assert bench.told() == []
    scrape(bench, None)
    assert bench.told() == [f"{GAUGES} are read again"]
    assert bench.told() == []


def test_failing_speed_probes_are_logged_once_with_the_engines_message() -> None:
    bench = Bench(D0)
    bench.up(D0)
    why = "it answered a speed probe with 400: out of vocabulary"
    told = []
    for number in range(3 * REPEATED_FAILURES):
        assert bench.fleet.member(D0).speed_probes_fail is (number >= REPEATED_FAILURES)
        bench.fleet.observe(SpeedProbed(D0, "failed", why), bench.now)
        told += [(number, line) for line in bench.told()]
    [(number, line)] = told
    assert number == REPEATED_FAILURES - 1
    assert line.startswith("! the speed probes of decode http://d0:8000 fail, ")
    assert line.endswith(f": {why}")


def test_gauges_of_an_engine_that_is_down_are_nobodys_concern() -> None:
    bench = Bench(D0)
    bench.up(D0)
    scrape(bench, "no answer")  # it is about to go down
    bench.see(D0, HealthSignal.UNAVAILABLE)
    bench.told()
    bench.pass_(600.0)
    assert not [line for line in bench.told() if GAUGES in line]
    bench.see(D0, HealthSignal.OK)
    assert not [line for line in bench.told() if GAUGES in line]
    scrape(bench, None)
    bench.pass_(600.0)
    assert bench.told() == []


def test_an_engine_that_goes_down_and_returns_in_between_is_reported_once() -> None:
    bench = Bench(D0)
    bench.up(D0)
    scrape(bench, "no answer")
    bench.pass_(UNREAD_SECONDS)
    assert len(bench.told()) == 1
    bench.see(D0, HealthSignal.UNAVAILABLE)
    bench.see(D0, HealthSignal.OK)
    assert not [line for line in bench.told() if GAUGES in line]
    bench.pass_(UNREAD_SECONDS)
    assert bench.told() == []


# Engines that join and leave.


def test_joining_and_leaving_engines_are_logged() -> None:
    bench = Bench(D0)
    bench.up(D0)
    bench.apply(Entry(D0, 0), Entry(D1, 1, source="file engines.json"))
    bench.see(D1, HealthSignal.OK)
    assert bench.told() == [
        "decode http://d1:8000 joined (named by file engines.json); 2 of 2 decode engines up",
        "decode http://d1:8000 is up; 2 of 2 decode engines up",
    ]
    bench.pass_(5.0)
    lease = Selection(bench.fleet).lease(D1, 10)
    bench.apply(Entry(D0, 0), Entry(D1, 1, leaving_since=bench.now))
    assert bench.told() == [
        "decode http://d1:8000 is draining: it was removed from the fleet, with 1 request left; "
        "1 of 2 decode engines up"
    ]
    bench.pass_(3.0)
    bench.apply(Entry(D0, 0))
    assert bench.told() == [
        "decode http://d1:8000 is gone after 3.0 s draining, with 1 request left, which go on; "
        "1 of 1 decode engines up"
    ]
    lease.release()
    assert bench.told() == []


def test_an_idle_leaving_engine_is_removed_at_once() -> None:
    bench = Bench(D0, D1)
    bench.up(D0, D1)
    bench.apply(Entry(D0, 0))
    assert bench.told() == [
        "decode http://d1:8000 is gone after 0.0 s up; 1 of 1 decode engines up",
    ]


def test_a_drain_is_logged_but_not_its_probes() -> None:
    bench = Bench(D0, D1)
    bench.up(D0, D1)
    leases = [Selection(bench.fleet).lease(D1, 10) for _ in range(2)]
    bench.apply(Entry(D0, 0), Entry(D1, 1, is_draining=True))
    since = bench.now
    assert bench.told() == [
        "decode http://d1:8000 is draining: its source or an operator drains it, with 2 requests "
        "left; 1 of 2 decode engines up"
    ]
    for lease in leases:
        lease.release()
    bench.see(D1, HealthSignal.FAILED, 3)
    bench.pass_(1000.0)
    assert bench.told() == []
    member = bench.fleet.member(D1)
    assert (of.status(member), of.since(member)) == (State.DRAINING, since)
    assert "no requests left" in (of.cause(member) or "")
    bench.see(D1, HealthSignal.OK)
    bench.apply(Entry(D0, 0), Entry(D1, 1))
    assert bench.told() == [
        "decode http://d1:8000 is up again after 1000 s draining; 2 of 2 decode engines up"
    ]


def test_a_replaced_engine_is_logged() -> None:
    bench = Bench(D0)
    bench.up(D0)
    bench.apply(Entry(D0, 1, "uid", source="kubernetes"))
    assert bench.told() == [
        "decode http://d0:8000 is another engine now (named by kubernetes); "
        "0 of 1 decode engines up"
    ]


def test_an_empty_pool_is_reported() -> None:
    assert pool_status([]) == "none is known yet"


def test_a_silent_encode_engine_is_not_said_to_get_requests() -> None:
    engine = Endpoint("http://e0", Role.ENCODE)
    bench = Bench(D0, engine)
    bench.up(D0)
    bench.up(engine)
    for probe in range(3):
        bench.fleet.observe(
            Probed(engine, HealthSignal.TIMED_OUT, error="no answer", asked_at=bench.now + probe),
            bench.now + probe,
        )
    bench.pass_(10.0)
    bench.fleet.tick(bench.now)
    [down] = bench.told()
    assert "no answer; 0 of 1 encode engines up" in down


def test_a_panic_is_logged_once_with_its_end() -> None:
    bench = Bench(D0)
    bench.up(D0)
    member = bench.fleet.member(D0)
    for probe in range(3):
        bench.fleet.observe(
            Probed(D0, HealthSignal.TIMED_OUT, error="no answer", asked_at=bench.now + probe),
            bench.now + probe,
        )
    bench.pass_(10.0)
    bench.fleet.tick(bench.now)
    down, panic = bench.told()
    assert "no answer; it gets requests only while no other engine can" in down
    assert panic == (
        "! panic: too few decode engines are up and in order, so others get requests too; "
        "0 of 1 up: 1 down"
    )
    bench.see(D0, HealthSignal.OK)
    bench.fleet.tick(bench.now)
    assert member.health.is_up
    assert bench.told()[1:] == ["the panic of the decode engines is over; 1 of 1 up"]


def test_in_a_panic_an_ejected_engine_is_shown_as_used() -> None:
    bench = Bench(D0)
    bench.up(D0)
    bench.log = StatusLog(
        *(bench.fleet, bench.fleet.pool, lambda role: role is Role.DECODE, bench.now),
        avoids_slow=bench.fleet.avoids_slow,
        time_of=str,
    )
    bench.fleet.member(D0).outlier = Outlier(since=bench.now, until=bench.now + 30.0)
    assert "it gets requests all the same, because too few others are left" in bench.told()[0]


def test_a_router_given_as_an_engine_is_named_in_the_pools_summary() -> None:
    bench = Bench(D0)
    bench.fleet.observe(Probed(D0, HealthSignal.FAILED, error=IS_ROUTER), bench.now)
    assert "1 of them no engine but a pd-router" in pool_status(bench.fleet.pool(Role.DECODE))
