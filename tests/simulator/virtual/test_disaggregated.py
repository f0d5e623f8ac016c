"""Prefill and decode pools in virtual time: the same plans that the router runs."""

from dataclasses import replace

import pytest

from router.core.values import Role
from router.simulator.virtual.scenarios.catalogue import scenario
from router.simulator.virtual.scenarios.pools import Size
from router.simulator.virtual.values import (
    EngineModel,
    EngineSpec,
    Lengths,
    Restart,
    Scenario,
    Speed,
    Workload,
)
from tests.simulator.virtual.cluster import run

MODEL = EngineModel(jitter=0.0, max_num_seqs=4, prefill_tokens_per_second=10_000.0)
PROMPT = 5000
"""Half a second of a prefill engine."""


def pools(*changes, prefills: int = 1, decodes: int = 1, requests: int = 4) -> Scenario:
    """One stream."""
    specs = (
        *(EngineSpec(MODEL) for _ in range(decodes)),
        *(EngineSpec(MODEL, Role.PREFILL) for _ in range(prefills)),
    )
    work = Workload(requests, 1, Lengths(PROMPT), Lengths(11))
    return Scenario(
        "pools", len(specs), MODEL, work, changes=changes, specs=specs, threshold=512,
        transfer_tokens_per_second=50_000.0,
    )  # fmt: skip


def test_a_prompt_is_prefilled_moved_and_decoded():
    result = run(pools())
    # The prefill's step, the transfer, and a step for the first token.
    assert result.ttft_p50 == pytest.approx(0.02 + 0.5 + 0.1 + 0.02)
    assert result.e2e_p50 == pytest.approx(result.ttft_p50 + 10 * 0.02)
    assert [(engine.role, engine.served) for engine in result.engines] == [
        ("decode", 4),
        ("prefill", 4),
    ]
    assert result.leases_left == 0


def test_short_prompts_are_not():
    made = pools()
    short = replace(made, workload=replace(made.workload, prompt=Lengths(100)))
    assert [engine.served for engine in run(short).engines] == [4, 0]


def test_without_prefill_engines_decode_computes():
    result = run(pools(Restart(0.0, 1, 1e6)))
    assert result.failed == 0
    assert [engine.served for engine in result.engines] == [4, 0]
    assert result.ttft_p50 == pytest.approx(0.52)


def test_a_prefill_engine_that_dies_in_its_prefill_is_replaced():
    result = run(pools(Restart(0.3, 1, 1e6), prefills=2, requests=1))
    assert result.failed == 0
    assert [engine.served for engine in result.engines] == [1, 0, 1]


def test_a_kv_cache_that_is_gone_is_computed_again():
    result = run(pools(Restart(0.55, 1, 1e6), prefills=2, requests=1))  # while it is moved
    assert result.failed == 0
    assert [engine.served for engine in result.engines] == [1, 1, 1]


def test_decode_engines_that_go_during_the_prefill_cost_the_request():
    result = run(pools(Restart(0.1, 0, 3.0), requests=1))
    assert result.failed == 1
    assert result.leases_left == 0


def test_slow_prefills_are_no_stalls_and_leave_decoding_alone():
    result = run(scenario("slow-prefills", Size()))
    assert result.failed == 0
    assert result.ttft_p50 == pytest.approx(10.3, abs=0.3)
    assert result.ttft_p99 < 15
    prefills = [engine for engine in result.engines if engine.role == "prefill"]
    assert sum(engine.served for engine in prefills) == result.requests  # none was done twice


def test_when_the_prefill_pool_is_gone_prompts_are_computed_where_they_are_decoded():
    result = run(scenario("prefill-pool-gone", Size()))
    assert result.failed == 0
    decodes = [engine for engine in result.engines if engine.role == "decode"]
    # A minute and a half of prompts is silence, and no stall: nothing is computed twice.
    assert sum(engine.served for engine in decodes) == result.requests
    assert max(e.share for e in decodes) < 1.3 * min(e.share for e in decodes)


def test_routers_that_do_not_know_of_each_others_prompts_take_no_prefill_engine_for_slow():
    """Whose first tokens are late by prompts of others; one that is slow they see all the same."""
    prefill = EngineModel(prefill_tokens_per_second=15_000.0)
    specs = (*[EngineSpec(EngineModel())] * 4, *[EngineSpec(prefill, Role.PREFILL)] * 4)
    work = Workload(600, 0, Lengths(1800, 0.8, 16_000), Lengths(60, 0.5, 600), rate=16.0)
    made = Scenario("routers", 8, prefill, work, replicas=4, specs=specs, threshold=512)
    assert run(made).ttft_mean < 1.15 * run(made, "least_loaded").ttft_mean
    slow = replace(made, changes=(Speed(0.0, 4, 8.0),))
    assert run(slow).ttft_p99 < 0.5 * run(slow, "least_loaded").ttft_p99


def crossing(factor: float, policy: str) -> float:
    """The share of prompts whose KV cache crosses between two zones, in their later half."""
    size = Size(requests=1500)
    made = replace(scenario("zones-near", size), crossing_factor=factor)
    return run(made, policy).crossing_share


@pytest.mark.parametrize("policy", ["shortest_expected_delay", "least_loaded"])
def test_fewer_kv_caches_cross_between_zones_the_longer_it_takes(policy: str):
    near, far, farthest = (crossing(factor, policy) for factor in (1.0, 3.0, 30.0))
    assert near > 0.35
    assert near > 2 * far > 2 * farthest
    assert 0.0 < farthest < 0.03
