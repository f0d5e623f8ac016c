"""Deadlines: headers, the expected first token, and the refusal."""

from random import Random

import pytest

from router.core.errors import BadRequest, Overloaded
from router.core.policies import POLICIES
from router.core.routing.deadline import (
    FIRST_TOKEN,
    MAX_RETRY_SECONDS,
    WHOLE,
    check,
    first_token_seconds,
    seconds_of,
)
from router.core.routing.schedule import Scheduler
from router.core.values import Decision, Mode, Role
from tests.core.fixtures import COMPLETIONS, D0, D1, P0, request
from tests.core.fleets import fleet_up
from tests.core.judge.judged_pool import Pool

DIRECT = Decision(Mode.DIRECT, "test")
REMOTE = Decision(Mode.REMOTE, "test")


def test_milliseconds_and_seconds_are_read() -> None:
    fields = {b"x-slo-ttft-ms": b"1500", b"x-request-timeout": b"2.5"}
    assert seconds_of(fields, FIRST_TOKEN) == 1.5
    assert seconds_of(fields, WHOLE) == 2.5
    assert seconds_of({}, WHOLE) is None


@pytest.mark.parametrize("value", [b"", b"x", b"0", b"-1", b"nan", b"inf", b"1e999", b"\xff"])
def test_other_values_are_refused(value: bytes) -> None:
    with pytest.raises(BadRequest, match="x-request-timeout must be a number above 0"):
        seconds_of({WHOLE: value}, WHOLE)


def test_a_first_token_waits_for_a_slot_as_long_as_answers_before_it_take() -> None:
    pool = Pool(0.02)
    pool.streams(8)
    pool.run(2.0)
    [member] = pool.members
    member.view.slots = 4.0
    free = pool.judge.first_token_delay(member, 0, pool.now)
    member.view.load.add(4, 0, 0)
    one = pool.judge.first_token_delay(member, 0, pool.now)
    member.view.load.add(4, 0, 0)
    five = pool.judge.first_token_delay(member, 0, pool.now)
    assert free == 0.0
    answer = 4 * one  # seconds of an answer, of which four end meanwhile
    assert answer == pytest.approx(2.0, rel=0.1)
    assert five == pytest.approx(5 * one)
    member.view.other_requests = 1.0
    assert pool.judge.first_token_delay(member, 0, pool.now) == pytest.approx(6 * one)


def scheduler() -> Scheduler:
    policies = dict.fromkeys(Role, POLICIES["least_loaded"])
    return Scheduler(fleet_up(P0, D0, D1), policies, 100, Random(1))


def test_the_best_engine_counts_and_a_remote_prompt_is_not_computed_twice() -> None:
    chosen = scheduler()
    for endpoint, seconds in ((P0, 0.001), (D0, 0.004), (D1, 0.002)):
        chosen.fleet.member(endpoint).speed.per_prompt_token = seconds
    facts = request(COMPLETIONS, prompt="x" * 4000)
    assert first_token_seconds(chosen, facts, DIRECT, 0.0) == pytest.approx(2.0)
    assert first_token_seconds(chosen, facts, REMOTE, 0.0) == pytest.approx(1.0)
    chosen.fleet.member(D1).view.load.add(1, 0, 2000)
    assert first_token_seconds(chosen, facts, DIRECT, 0.0) == pytest.approx(4.0)


def test_nothing_is_late_before_anything_is_measured() -> None:
    facts = request(COMPLETIONS, prompt="x" * 4000)
    assert first_token_seconds(scheduler(), facts, DIRECT, 0.0) == 0.0
    check(scheduler(), facts, DIRECT, 0.5, 0.4, 0.0)


def test_without_an_engine_the_plan_reports_it() -> None:
    policies = dict.fromkeys(Role, POLICIES["least_loaded"])
    empty = Scheduler(fleet_up(), policies, 100, Random(1))
    assert first_token_seconds(empty, request(COMPLETIONS, prompt="x"), DIRECT, 0.0) == 0.0


def test_the_time_that_has_passed_counts() -> None:
    with pytest.raises(Overloaded, match=r"expected after 600 ms, later than .* of 500\."):
        check(scheduler(), request(COMPLETIONS, prompt="x"), DIRECT, 0.5, 0.6, 0.0)


@pytest.mark.parametrize(("late", "seconds"), [(0.1, 1), (2.5, 3), (1e6, MAX_RETRY_SECONDS)])
def test_the_client_is_asked_to_wait_for_as_long_as_it_would_be_late(
    late: float, seconds: int
) -> None:
    with pytest.raises(Overloaded) as error:
        check(scheduler(), request(COMPLETIONS, prompt="x"), DIRECT, 1.0, 1.0 + late, 0.0)
    assert error.value.retry_after == seconds
