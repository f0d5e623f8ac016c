"""Scenarios in which engines and routers fail: what users notice, and which engines work."""

from dataclasses import replace
from functools import cache

import pytest

from router.core.routing.engine_timeouts import EngineTimeouts
from router.simulator.virtual.results import EngineResult, Result
from router.simulator.virtual.scenarios.catalogue import scenario
from router.simulator.virtual.scenarios.pools import Size
from router.simulator.virtual.values import (
    EngineModel,
    EngineSpec,
    Lengths,
    Restart,
    RouterRestart,
    Scenario,
    Unread,
    Workload,
)
from tests.simulator.virtual.cluster import SED, cluster, run


@cache
def result_of(name: str, policy: str = SED) -> Result:
    """A run with half of the usual streams, 24 per engine, for as long."""
    made = scenario(name, Size())
    streams, requests = made.workload.streams // 2, made.workload.requests // 2
    halved = replace(made.workload, streams=streams, requests=requests)
    return run(replace(made, workload=halved), policy)


def spread(engines: list[EngineResult]) -> float:
    """The largest share over the smallest."""
    shares = [engine.share for engine in engines]
    return max(shares) / min(shares)


def test_waves_stay_as_fast_as_without_the_slow_engine():
    result = result_of("waves")
    assert result.failed == 0
    assert result.ttft_p50 == pytest.approx(0.04)
    assert result.ttft_p99 <= 0.06  # no request waits for a slot
    assert result.engines[0].share < 0.04
    assert spread(list(result.engines[1:])) < 1.15


def test_a_wave_ends_in_one_step_and_its_tokens_are_on_the_grid():
    healthy = scenario("waves", Size(requests=384 * 3))
    result = run(type(healthy)(healthy.name, 8, healthy.model, healthy.workload))
    # 50 tokens from the first step that is 40 ms after arrival: three waves without a gap.
    wave = 0.04 + 49 * 0.02
    assert result.seconds == pytest.approx(3 * wave)
    assert result.e2e_p50 == result.e2e_p99 == pytest.approx(wave)
    assert [engine.served for engine in result.engines] == [144] * 8


def test_an_engine_that_breaks_every_stream_is_ejected():
    result = result_of("every-stream-breaks")
    # Those that were there, which are one failure, those who came back together a second later,
    # and none within the 30 s of its ejection.
    assert result.failed <= 2 * 24 + 8
    assert result.engines[0].share < 0.05


@pytest.mark.parametrize("policy", [SED, "round_robin"])
def test_engine_failing_a_fifth_is_ejected(policy):
    result = result_of("fails-20-percent", policy)
    # Until 5 failures in a row or the first interval of 10 s is over: a fifth of its share.
    assert result.failed <= 0.2 * 180 / 8 * 12


def test_a_model_that_fails_everywhere_takes_no_engine_from_the_other_one():
    """The first engines to fail look alone for a moment, for they are asked again at once: they
    are back in use when the others fail as well."""
    result = result_of("model-fails")
    # 96 clients in turn ask for it, and ask again after a second.
    assert result.failed > 1000
    assert result.requests - result.failed >= 1500
    for engine in result.engines:
        assert engine.share == pytest.approx(1 / 8, rel=0.1), engine
    assert result.ttft_p99 < 0.1


def test_a_model_that_fails_on_one_engine_goes_to_the_others_and_so_does_the_other_one():
    result = result_of("model-fails-on-one")
    assert result.failed <= 24  # an engine is ejected as a whole, within one wave of its streams
    assert result.engines[0].share < 0.05
    assert spread(list(result.engines[1:])) < 1.15
    assert result.ttft_p99 < 0.1


@pytest.mark.parametrize("policy", [SED, "round_robin"])
def test_a_poisoned_prompt_ejects_no_engine(policy):
    """Though it is sent to the engines that have had it before."""
    result = result_of("poisoned-prompt", policy)
    assert result.failed == pytest.approx(0.05 * 3000, rel=0.2)
    assert all(engine.is_fit and engine.starved_seconds == 0.0 for engine in result.engines)
    assert spread(list(result.engines)) < 1.1


def test_requests_that_are_refused_go_elsewhere():
    result = result_of("refuses")
    assert result.failed == 0
    assert result.engines[0].share < 0.06


def test_a_hung_core_costs_only_the_streams_that_it_had():
    result = result_of("hung-core")
    assert result.failed <= 24
    assert result.ttft_p99 < 0.1
    assert result.steady_requests_per_second == pytest.approx(180, rel=0.05)


@pytest.mark.parametrize("name", ["slow-clients", "slow-clients-everywhere"])
def test_engines_whose_clients_do_not_read_keep_their_share(name: str) -> None:
    """Of requests, in the router's eyes: what is whole and not yet read counts as any other, which
    on engine 0 is a tenth of what it has."""
    result = run(scenario(name, Size()))
    assert result.failed == 0
    assert result.probes == 0  # none is thought to be slow or to have stalled
    assert all(engine.longest_starved < 5.0 for engine in result.engines)
    assert result.engines[0].share > 0.85 / 8
    assert spread(list(result.engines[1:])) < 1.15
    assert result.ttft_p99 < 0.1


def test_a_client_that_does_not_read_is_not_timed_out_and_a_dead_engine_is_seen_behind_it() -> None:
    """Three times as long as an engine may be silent; what engine 1 had not sent breaks off."""
    model = EngineModel(max_num_seqs=16)
    work = Workload(1200, 32, Lengths(32), Lengths(50))
    changes = (Unread(2.0, 0, 15.0), Unread(2.0, 1, 15.0), Restart(2.2, 1, 5.0))
    asked = Scenario("unread", 3, model, work, changes=changes, timeouts=EngineTimeouts(600.0, 5.0))
    result = run(asked)
    assert 0 < result.failed <= 11
    assert result.requests == 1200
    assert result.leases_left == 0


def test_a_restarted_router_drops_unread_messages() -> None:
    result = run(cluster(Unread(2.0, 0, 3.0), RouterRestart(3.0, 0), requests=900))
    assert result.failed <= 96
    assert result.requests == 900
    assert result.leases_left == 0


def test_an_engine_that_restarts_comes_back_to_its_share():
    result = run(scenario("restart", Size(streams=192, requests=4500)))
    assert 0 < result.failed <= 24
    # It is back after 5 s, is seen within 1 s, and slow start takes 5 s.
    late = [sample.loads[0] for sample in result.samples if 17 < sample.at < 23]
    assert sum(late) / len(late) == pytest.approx(24, rel=0.15)


def test_a_router_that_restarts_loses_its_streams_and_learns_again():
    result = result_of("router-restart")
    assert 0 < result.failed <= 192 / 3 + 8
    assert result.leases_left == 0
    assert all(engine.longest_starved < 10 for engine in result.engines)


@pytest.mark.parametrize("workers", [1, 4])
def test_workers_spread_load_as_one_process_does(workers: int) -> None:
    """Each knows the requests of all."""
    result = result_of(f"workers-{workers}")
    assert result.failed == 0
    assert result.max_over_mean_load < 1.02
    assert spread(list(result.engines)) < 1.15
    assert all(engine.longest_starved < 3.0 for engine in result.engines)
    assert result.ttft_p99 < 0.1


@pytest.mark.parametrize("workers", [1, 4])
def test_workers_avoid_a_slow_engine_as_one_process_does(workers: int) -> None:
    """They measure it together; three routers, of which each finds out by itself, send it half as
    many again, and make one in a hundred wait for 0.4 s."""
    result = result_of(f"workers-{workers}-slow8")
    assert result.failed == 0
    assert result.engines[0].share < 0.01
    assert spread(list(result.engines[1:])) < 1.15
    assert max(engine.oscillation for engine in result.engines[1:]) < 0.1
    assert result.ttft_p99 < 0.1
    assert result.steady_requests_per_second > 150


@pytest.mark.parametrize("worker", [0, 1])
def test_a_worker_that_restarts_takes_its_own_requests_with_it(worker: int) -> None:
    """Also the leader, which probes for all; the engine that is gone meanwhile comes back."""
    changes = (Restart(1.5, 2, 1.0), RouterRestart(2.0, worker))
    asked = cluster(*changes, requests=2400, replicas=2)
    result = run(replace(asked, has_workers=True))
    assert result.failed <= 48 + 16
    assert result.leases_left == 0
    assert spread([*result.engines[:2], *result.engines[3:]]) < 1.15
    assert result.engines[2].share > 0.5 / 8


def test_where_all_are_slow_none_is_excluded():
    result = result_of("all-slow")
    assert result.probes == 0
    assert spread(list(result.engines)) < 1.1


def test_an_engine_that_is_slow_now_and_then_has_its_share_when_it_is_fast():
    result = result_of("alternating")
    assert result.engines[0].longest_starved < 5.0
    assert result.ttft_p99 < 0.2


@pytest.mark.parametrize("policy", [SED, "least_loaded"])
def test_two_models_use_all_of_their_engines(policy):
    assert spread(list(result_of("two-models", policy).engines)) < 1.1


def test_three_models_on_overlapping_engines_use_all_of_them():
    result = result_of("three-models")
    assert spread(list(result.engines)) < 1.6
    assert result.ttft_p99 < 0.15


def test_engines_of_two_generations_work_by_their_speed():
    result = result_of("two-speeds")
    slow, fast = result.engines[0::2], result.engines[1::2]
    assert result.failed == 0
    assert sum(e.share for e in fast) > 2 * sum(e.share for e in slow)
    assert all(engine.share > 0 for engine in slow)


@pytest.mark.parametrize(("streams", "least", "most"), [(40, 0.0, 1.5), (80, 8.0, 11.0)])
def test_slower_kind_works_once_faster_is_full(streams: int, least: float, most: float) -> None:
    """Three fast engines have 48 slots: of 80 streams each slow one is to have a third of 32."""
    fast = EngineModel(max_num_seqs=16)
    slow = replace(fast, step_seconds=3 * fast.step_seconds)
    work = Workload(20 * streams, streams, Lengths(32), Lengths(50))
    specs = (*[EngineSpec(slow)] * 3, *[EngineSpec(fast)] * 3)
    result = run(Scenario("kinds", 6, fast, work, specs=specs))
    for engine in result.engines[:3]:
        assert least <= engine.mean_in_flight <= most, engine
    for engine in result.engines[3:]:
        assert engine.mean_in_flight <= 1.1 * 16, engine


def test_engines_with_few_slots_have_no_queue_while_others_have_room():
    result = run(scenario("mixed-slots", Size(requests=3000)))
    # All streams begin at once, with unknown slots: some wait for one wave, none for two.
    assert all(engine.longest_wait <= 1.1 for engine in result.engines)
    assert result.steady_requests_per_second > 350


def test_an_open_loop_is_served_at_its_rate():
    result = run(scenario("open-loop", Size()))
    assert result.requests_per_second == pytest.approx(0.75 * 8 * 64, rel=0.1)
    assert spread(list(result.engines)) < 1.1
