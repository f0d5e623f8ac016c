"""The scenarios by name."""

import pytest

from router.core.values import Role
from router.simulator.virtual.scenarios.catalogue import SCENARIOS, scenario
from router.simulator.virtual.scenarios.pools import Size
from router.simulator.virtual.values import AUTO, NEVER, Restart, Speed, threshold_name


def test_sizes_may_be_chosen():
    made = scenario("healthy", Size(engines=3, streams=5, requests=7, replicas=2))
    work = made.workload
    assert (made.engines, work.streams, work.requests, made.replicas) == (3, 5, 7, 2)


def test_load_grows_with_the_engines():
    made = scenario("healthy", Size(engines=100))
    assert (made.workload.streams, made.workload.requests) == (4800, 75_000)


@pytest.mark.parametrize("engines", [1, 8, 100])
def test_each_can_be_made_for_any_number_of_engines(engines):
    for name in SCENARIOS:
        assert scenario(name, Size(engines=engines, requests=1000)).engines == engines, name


def test_an_unknown_one_is_an_error():
    with pytest.raises(KeyError):
        scenario("sunny", Size())


def test_half_of_a_mixed_pool_and_a_quarter_of_two_slow_are_slow():
    mixed = scenario("mixed", Size()).changes
    assert mixed == tuple(Speed(0.0, engine, 2.0) for engine in range(4))
    assert len(scenario("two-slow", Size()).changes) == 2


def test_a_rolling_restart_meets_each_engine_once():
    changes = scenario("rolling-restart", Size(engines=20)).changes
    assert sorted(change.engine for change in changes if isinstance(change, Restart)) == list(
        range(20)
    )
    assert all(isinstance(change, Restart) for change in changes)
    assert len({change.at for change in changes}) == 7  # at most eight waves


def test_bursts_come_from_outside():
    work = scenario("bursts", Size(streams=100)).workload
    assert (work.burst_requests, work.burst_seconds) == (100, 3.0)


@pytest.mark.parametrize(("name", "prefills"), [("2p6d-90", 2), ("4p4d-90", 4)])
def test_prompts_need_the_given_share_of_prefill_capacity(name, prefills):
    made = scenario(name, Size())
    engines = [spec.model for spec in made.pool if spec.role is Role.PREFILL]
    assert len(engines) == prefills
    can = sum(model.prefill_tokens_per_second for model in engines)
    assert made.workload.rate * made.workload.prompt.mean == pytest.approx(0.9 * can)
    assert made.threshold == AUTO


def test_a_threshold_is_named_as_on_the_command_line():
    assert [threshold_name(each) for each in (AUTO, NEVER, 0, 512)] == ["auto", "", "0", "512"]
