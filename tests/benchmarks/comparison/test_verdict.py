from dataclasses import replace
from typing import Any

import pytest

from benchmarks.comparison import verdict
from benchmarks.comparison.measure import Reading
from benchmarks.comparison.scenarios import SCENARIOS, Scenario
from tests.benchmarks.readings import JOB, SCENARIO, lateness, reading


def reasons(seen: Reading, cores: int = 2) -> list[str]:
    return verdict.reasons(verdict.guards(seen, SCENARIO, cores), SCENARIO)


def test_a_bench_with_room_is_valid() -> None:
    assert reasons(reading()) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"engine_cpu_s": 3.6}, "engines used 0.90 of a core"),
        ({"client_cpu_s": 3.6}, "client used 0.90 of a core"),
        ({"engines": {"lateness": lateness(0.011)}}, "engines late: p99 11.0 ms"),
        ({"load": {"lateness": lateness(0.011)}}, "client late: p99 11.0 ms"),
        ({"engines": {"lateness": lateness(beats=96, missed=4)}}, "4.0% of decode steps missed"),
        ({"load": {"active_mean": 9.0}}, "concurrency 90% of asked"),
        ({"machine_busy_s": 7.92, "router_cpu_s": 0.04}, "others used 1.77 cores, 0.02 were idle"),
    ],
)
def test_a_bench_that_was_the_limit_is_void(changes: dict[str, Any], words: str) -> None:
    assert reasons(reading(**changes)) == [words]


def test_the_end_of_a_job_leaves_clients_without_work() -> None:
    tail = reading(load={"active_mean": 2.0})
    assert verdict.reasons(verdict.guards(tail, JOB, 2), JOB) == []


def test_a_slow_router_is_a_result() -> None:
    slow = reading(router_cpu_s=7.0, machine_busy_s=7.9, load={"first_p99_s": 5.0})
    assert reasons(slow) == []


def test_a_loop_that_never_beat_is_late() -> None:
    silent = {"lateness": lateness(p99_s=None, beats=0)}
    assert reasons(reading(engines=silent)) == ["engines late: p99 4000.0 ms"]


def test_others_on_a_large_machine_do_not_matter() -> None:
    assert reasons(reading(machine_busy_s=7.9), cores=16) == []


PD = replace(SCENARIOS["pd"], clients=10)


def legs(seen: dict[str, int], *, routed: bool = True, scenario: Scenario = PD) -> list[str]:
    return verdict.wrong_legs(reading(engines={"seen": seen}), scenario, routed)


def test_two_legs_must_be_two() -> None:
    assert legs({"decodes with handover": 5}) == []
    assert legs({"decodes without handover": 5}) == ["5 decode legs without a prefill"]
    assert legs({"bad handovers": 1}) == ["1 handovers that were changed"]


def test_one_leg_is_right_where_there_is_no_router_or_no_prefill() -> None:
    assert legs({"decodes without handover": 5}, routed=False) == []
    assert legs({"decodes without handover": 5}, scenario=SCENARIO) == []


def test_a_burst_that_the_client_could_not_begin_at_once_is_void() -> None:
    burst = replace(SCENARIOS["burst"], clients=10)
    late = reading(load={"lateness": lateness() | {"max_s": 0.3}})
    assert verdict.reasons(verdict.guards(late, burst, 2), burst) == ["client away for 300.0 ms"]
    assert reasons(late) == []


def test_a_scenario_may_allow_another_lateness_than_a_step() -> None:
    long = replace(SCENARIO, step_s=10.0, late_s=0.1)
    late = reading(engines={"lateness": lateness(0.2)})
    assert verdict.reasons(verdict.guards(late, long, 2), long) == ["engines late: p99 200.0 ms"]


def test_where_the_machine_is_the_limit_only_others_on_it_void_a_turn() -> None:
    saturated = SCENARIOS["saturated-1024"]
    late = {"lateness": lateness(3.0, missed=400)}
    own = reading(engine_cpu_s=3.6, client_cpu_s=3.6, load=late, engines=late)
    assert verdict.reasons(verdict.guards(own, saturated, 2), saturated) == []
    others = replace(own, router_cpu_s=0.0, engine_cpu_s=0.4, client_cpu_s=0.4, machine_busy_s=7.96)
    [reason] = verdict.reasons(verdict.guards(others, saturated, 2), saturated)
    assert reason == "others used 1.79 cores, 0.01 were idle"
