"""Loads that once misled the judgement of engines, by what their users waited."""

from router.simulator.virtual import EngineModel, Lengths, Scenario, Speed, Workload
from tests.simulator.virtual.cluster import run

POOL = 8


def test_users_wait_for_no_slot_that_an_engine_of_unknown_limit_does_not_have():
    """Engines with four slots each, and bursts of five times as many requests: in the first ones
    the router sees the limits of some engines and not those of others."""
    work = Workload(
        2500,
        0,
        Lengths(200, 0.8, 4000),
        Lengths(5),
        burst_seconds=2.0,
        burst_requests=20 * POOL,
        rate=10.0 * POOL,
    )
    asked = Scenario("bursts", POOL, EngineModel(max_num_seqs=4), work)
    least_loaded = run(asked, "least_loaded")
    result = run(asked)
    assert result.ttft_p99 < 1.2 * least_loaded.ttft_p99
    assert result.requests_per_second > 0.98 * least_loaded.requests_per_second


def test_an_engine_that_is_slow_every_other_second_delays_few_first_tokens():
    """It has a small share when it is taken back, for it turns slow again before it has all."""
    changes = tuple(Speed(float(n), 0, 8.0 if n % 2 else 1.0) for n in range(1, 60))
    work = Workload(3000, 0, Lengths(32), Lengths(50), rate=32.0 * POOL)
    result = run(Scenario("alternating", POOL, EngineModel(), work, changes=changes))
    assert result.ttft_p99 < 0.1
    assert 0.005 < result.engines[0].share < 0.03
