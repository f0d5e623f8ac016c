"""The threshold that follows the engines, on engines: against constants, under any load."""

from dataclasses import replace
from functools import cache

import pytest

from router.simulator.virtual.cluster import simulate
from router.simulator.virtual.results import Result
from router.simulator.virtual.scenarios.catalogue import scenario
from router.simulator.virtual.scenarios.pools import Size
from router.simulator.virtual.values import AUTO, Scenario, Speed
from tests.simulator.virtual.cluster import SED

SIZE = Size(requests=500)


@cache
def run(made: Scenario, threshold: int = AUTO, max_itl_impact: float = 100.0) -> Result:
    """The scenario with this threshold."""
    made = replace(made, threshold=threshold, max_itl_impact=max_itl_impact)
    return simulate(made, SED, seed=1)


@pytest.mark.parametrize(
    ("name", "requests"), [("2p6d-30", 150), ("4p4d-90", 500), ("2p6d-150", 700)]
)
def test_no_constant_has_first_tokens_much_sooner(name: str, requests: int) -> None:
    """At a low load fewer requests take as long."""
    made = scenario(name, Size(requests=requests))
    best = min(run(made, threshold).ttft_mean for threshold in (0, 1024, 3500, 16_384))
    result = run(made)
    assert result.ttft_mean <= 1.05 * best
    assert result.failed == 0
    assert 0.0 < result.remote_share < 1.0


def test_the_delay_of_streams_is_bounded_even_with_overloaded_prefill_engines() -> None:
    made = scenario("4p4d-150", SIZE)
    free, guarded = (run(made, max_itl_impact=impact).itl_mean for impact in (100.0, 0.3))
    step = made.model.step_seconds
    assert guarded < 0.8 * free
    assert guarded < 1.5 * step


def test_prompts_leave_prefill_engines_that_have_become_slow() -> None:
    made = scenario("4p4d-90", SIZE)
    slow = replace(made, changes=tuple(Speed(10.0, place, 10.0) for place in range(4, 8)))
    result = run(slow)
    assert result.remote_share < 0.6 * run(made).remote_share
    assert result.ttft_mean < 0.1 * run(slow, 1024).ttft_mean


def test_a_transfer_takes_its_base_and_its_tokens() -> None:
    made = scenario("4p4d-30", Size(requests=1))
    moved, slower = (
        run(replace(made, transfer_seconds=seconds), 0).ttft_p50 for seconds in (0.0, 1.0)
    )
    assert slower - moved == pytest.approx(1.0, abs=0.05)
