"""A scenario of tests/e2e/judgement that fails on a machine that is too slow proves nothing."""

import asyncio

import pytest

from tests.e2e.judgement.lateness import (
    LATE_S,
    LATE_SHARE,
    LOOK_S,
    Lateness,
    MachineTooSlow,
    RouterLateness,
)
from tests.e2e.judgement.stage import ATTEMPTS, play_again_if_late
from tests.e2e.process import serving

WATCHED_S = 10.0


class Play:
    """A scenario that fails so often, while the loop is late by so much at most and in all."""

    def __init__(
        self,
        *,
        lateness: float = 0.0,
        total: float = 0.0,
        fails: int,
        failure: type[Exception] = AssertionError,
    ) -> None:
        self.times = 0
        self._lateness = lateness
        self._total = total
        self._fails = fails
        self._failure = failure

    def run(self) -> int:
        """How often it is played."""
        asyncio.run(play_again_if_late(self._play, self._late))
        return self.times

    async def _play(self) -> None:
        self.times += 1
        if self.times <= self._fails:
            raise self._failure("a claim")

    def _late(self) -> Lateness:
        made = Lateness()
        made.most, made.total, made.watched = self._lateness, self._total, WATCHED_S
        return made


def test_a_scenario_that_fails_on_a_machine_that_is_fast_enough_has_failed() -> None:
    play = Play(lateness=LATE_S / 2, total=LATE_SHARE * WATCHED_S / 2, fails=1)
    with pytest.raises(AssertionError, match="a claim"):
        play.run()
    assert play.times == 1


def test_a_scenario_that_fails_while_the_machine_is_too_slow_is_played_again() -> None:
    assert Play(lateness=LATE_S, fails=ATTEMPTS - 1).run() == ATTEMPTS


def test_many_short_delays_are_a_machine_that_is_too_slow() -> None:
    assert Play(total=1.1 * LATE_SHARE * WATCHED_S, fails=1).run() == 2


def test_a_scenario_that_fails_while_a_router_is_late_is_played_again() -> None:
    assert Play(fails=1, failure=MachineTooSlow).run() == 2


def test_a_scenario_that_has_no_machine_that_is_fast_enough_is_skipped() -> None:
    with pytest.raises(pytest.skip.Exception, match="too slow"):
        Play(lateness=LATE_S, fails=ATTEMPTS).run()


def test_a_scenario_that_succeeds_does_so_on_any_machine() -> None:
    assert Play(lateness=9.0, fails=0).run() == 1


def test_the_longest_delay_counts_and_so_does_the_sum_of_all() -> None:
    lateness = Lateness()
    for late in (0.0, LATE_S / 2, LATE_S / 4):
        lateness.note(late)
    assert lateness.most == LATE_S / 2
    assert lateness.total == LATE_S * 3 / 4
    assert lateness.watched == pytest.approx(3 * LOOK_S + lateness.total)


def _metrics(late: tuple[float, ...], delays: int, long_delays: int) -> str:
    """The workers' event-loop metrics of a router."""
    histogram = "pd_router_event_loop_lag_seconds"
    lines = [
        f"# TYPE {histogram} histogram",
        f'{histogram}_bucket{{le="0.25"}} {delays - long_delays}',
        f'{histogram}_bucket{{le="+Inf"}} {delays}',
        f"{histogram}_count {delays}",
        "# TYPE pd_router_event_loop_late_seconds_total counter",
        *(
            f'pd_router_event_loop_late_seconds_total{{worker="{worker}"}} {seconds}'
            for worker, seconds in enumerate(late)
        ),
    ]
    return "\n".join([*lines, ""])


def _read(at: float, late: tuple[float, ...], long_delays: int) -> RouterLateness:
    return RouterLateness.read(_metrics(late, 5000, long_delays), at)


def test_a_router_is_late_by_one_long_delay_or_by_many_since_it_was_ready() -> None:
    ready = _read(100.0, (5.0, 7.0), 3)
    assert not _read(110.0, (5.0, 7.0), 3).is_too_much_since(ready)
    assert not _read(110.0, (5.9, 7.9), 3).is_too_much_since(ready)
    assert _read(110.0, (5.0, 8.1), 3).is_too_much_since(ready)
    assert _read(110.0, (5.0, 7.0), 4).is_too_much_since(ready)


async def test_a_router_reports_its_lateness() -> None:
    """Under the names and in the bucket that are looked for."""
    async with serving("--decode", "http://127.0.0.1:9", "--workers", "2") as router:
        client = await router.client()
        text = (await client.get("/metrics")).body.decode()
    lateness = RouterLateness.read(text, 0.0)
    assert set(lateness.seconds) <= {"0", "1"}
    assert 'pd_router_event_loop_lag_seconds_bucket{le="0.25"}' in text
    assert lateness.long_delays >= 0
