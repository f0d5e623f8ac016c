"""A cluster in virtual time, as a whole."""

from dataclasses import replace

import pytest

from router.simulator.virtual.policies import POLICY_NAMES
from router.simulator.virtual.scenarios.catalogue import SCENARIOS, scenario
from router.simulator.virtual.scenarios.pools import Size
from router.simulator.virtual.values import EngineModel, FaultRates, Freeze, Lengths, Restart, Speed
from tests.simulator.virtual.cluster import SED, STEP, cluster, run

TROUBLE = (Speed(0.5, 0, 8.0), Freeze(1.0, 1, 4.0), Restart(1.5, 2, 2.0), Speed(4.0, 0, 1.0))
VARIED = Lengths(40, 0.6, 200)


@pytest.fixture(scope="module")
def healthy():
    """A healthy run under the recommended policy."""
    return run(cluster())


@pytest.mark.parametrize("policy", POLICY_NAMES)
@pytest.mark.parametrize("replicas", [1, 3])
def test_every_request_ends_once_and_leaves_no_state(policy, replicas):
    asked = cluster(*TROUBLE, streams=48, requests=150, replicas=replicas, output=VARIED)
    result = run(asked, policy)
    assert result.requests == 150
    assert result.failed <= 8  # those that had begun on the engine that was killed
    assert result.leases_left == 0
    assert 0 < result.most_running <= 16
    assert result.samples[-1].ended <= 150


def test_the_same_seed_gives_the_same_run():
    asked = cluster(*TROUBLE, requests=300, replicas=2, output=VARIED)
    once, again, other = (run(asked, seed=seed) for seed in (1, 1, 2))
    assert repr(once) == repr(again)  # not ==, because nan is not equal to itself
    assert once.row() != {**other.row(), "seed": 1}


def test_policies_meet_the_same_work():
    asked = cluster(requests=150, prompt=VARIED, output=VARIED)
    tokens = {
        round(result.tokens_per_second * result.seconds)
        for result in (run(asked, policy) for policy in POLICY_NAMES)
    }
    assert len(tokens) == 1


def test_a_healthy_cluster_is_as_fast_as_arithmetic_has_it(healthy):
    step = STEP + 12 / 50 * 32 / 40_000  # twelve streams have twelve prompts in fifty steps
    per_stream = (50 + 0.5) * step  # half a step until it is let in
    assert healthy.requests_per_second == pytest.approx(96 / per_stream, rel=0.02)
    assert healthy.tokens_per_second == pytest.approx(healthy.requests_per_second * 50)
    assert healthy.e2e_p50 == pytest.approx(per_stream, rel=0.03)
    assert healthy.max_over_mean_load == pytest.approx(1.0, abs=0.1)


def test_one_slow_engine_costs_shortest_expected_delay_little_and_least_loaded_much(healthy):
    slow = cluster(Speed(0.0, 0, 8.0), requests=2400)
    bound = healthy.requests_per_second
    assert run(slow, SED).requests_per_second >= 0.92 * bound
    assert run(slow, "least_loaded").requests_per_second < 0.85 * bound
    assert run(slow, "round_robin").requests_per_second < 0.3 * bound


def test_users_do_not_wait_for_a_frozen_engine(healthy):
    frozen = cluster(Freeze(2.0, 0, 10.0), requests=1400)
    result = run(frozen)
    assert result.ttft_p99 < 3 * healthy.ttft_p99
    assert run(frozen, "round_robin").ttft_p99 > result.ttft_p99


def test_the_router_finds_out_by_itself_that_an_engine_has_recovered():
    result = run(cluster(Speed(1.0, 0, 8.0), Speed(6.0, 0, 1.0), requests=2700))
    assert result.probes > 0
    late = [sample.loads for sample in result.samples if 20.0 < sample.at < 27.0]
    assert sum(loads[0] for loads in late) / len(late) == pytest.approx(12, rel=0.2)


def test_requests_that_met_a_dead_engine_are_tried_elsewhere():
    result = run(cluster(Restart(1.0, 0, 5.0), requests=600))
    assert 0 < result.failed <= 16
    assert result.requests == 600


def test_replicas_spread_their_load_though_each_sees_its_own_only():
    result = run(cluster(replicas=3, requests=1200, output=VARIED))
    assert result.max_over_mean_load <= 1.5
    assert result.requests_per_second > 0


def test_where_all_queues_are_full_clients_are_refused_and_come_back():
    model = EngineModel(max_num_seqs=2, step_seconds=STEP, max_num_queued_reqs=1)
    result = run(cluster(engines=2, streams=12, requests=60, model=model), "round_robin")
    assert result.failed > 0
    assert result.requests == 60
    assert result.leases_left == 0


@pytest.mark.parametrize("trouble", [FaultRates(0.0, 1, broken=1.0), Speed(0.0, 1, 8.0)])
def test_no_request_waits_in_vain_beside_an_engine_that_serves_none_or_would_take_longer(trouble):
    """The other one has more than its slots all the time."""
    result = run(cluster(trouble, engines=2, streams=32, requests=640))
    loads = [sample.loads[0] for sample in result.samples if 10.0 < sample.at < 15.0]
    assert min(loads) > 16
    assert result.engines[0].longest_wait == 0.0


def test_requests_wait_in_vain_beside_an_engine_that_is_as_fast_and_free():
    recovers = (Speed(0.0, 1, 8.0), Speed(5.0, 1, 1.0))
    result = run(cluster(*recovers, engines=2, streams=32, requests=640))
    assert result.engines[0].longest_wait > 0.0


def test_h100_gives_the_throughput_that_was_measured():
    result = run(scenario("h100", Size(engines=2, requests=2048)))
    assert 110_000 <= 4 * result.tokens_per_second <= 136_000


def test_a_stalled_h100_shows_the_weakness_of_round_robin():
    stalled = scenario("h100-stall", Size(engines=4, requests=4096))
    assert run(stalled, "round_robin").ttft_p99 > 4.0
    assert run(stalled, SED).ttft_p99 < 1.0


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_runs(name):
    small = scenario(name, Size(engines=4, streams=8, requests=32, replicas=2))
    result = run(replace(small, changes=small.changes[:4]))
    assert (result.scenario, result.requests, result.leases_left) == (name, 32, 0)
