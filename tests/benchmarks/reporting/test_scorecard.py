import pytest

from benchmarks.comparison.scenarios import SCENARIOS
from benchmarks.distributions import Summary
from benchmarks.reporting import scorecard
from benchmarks.reporting.scorecard import FEW, MISS, NOTHING, PASS
from benchmarks.reporting.targets import STALL_SCENARIOS, TARGETS, Target
from tests.benchmarks.filed import chunks, run

TARGET = Target("CPU per chunk", "relay", "cpu_us_per_chunk", 0.85, "vllm-router")


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [
        (None, NOTHING),
        (Summary(0.85, 0.7, 0.99, 5), PASS),
        (Summary(0.86, 0.7, 0.99, 5), MISS),
        (Summary(0.85, 0.85, 0.85, 4), FEW),
        (Summary(0.86, 0.86, 0.86, 1), MISS),
    ],
)
def test_a_pass_takes_enough_rounds(measured: Summary | None, verdict: str) -> None:
    assert scorecard.judge(measured, 0.85) == verdict


def test_a_target_is_judged_by_its_ratio() -> None:
    seen = run("relay", {"ours": chunks(*[8.0] * 5), "vllm-router": chunks(*[10.0] * 5)})
    found = scorecard.row(TARGET, [seen])
    assert (found.verdict, found.run) == (PASS, seen)
    assert found.measured is not None
    assert found.measured.median == pytest.approx(0.8)
    assert scorecard.row(TARGET, [run("relay", {"ours": chunks(8)})]).run is None


def test_every_target_is_a_figure_of_a_scenario() -> None:
    for target in TARGETS:
        assert target.metric in {each.key for each in run(target.scenario, {}).metrics}
    assert set(STALL_SCENARIOS) <= set(SCENARIOS)


def test_one_stall_anywhere_is_a_miss_and_a_pass_takes_all() -> None:
    still = [run(name, {"ours": chunks(1, stall_ms=3.0)}) for name in STALL_SCENARIOS]
    assert scorecard.stalls(still).verdict == PASS
    assert scorecard.stalls(still[1:]).verdict == "in part"
    assert scorecard.stalls([]).verdict == NOTHING
    once = run(STALL_SCENARIOS[0], {"ours": [*chunks(1, stall_ms=3.0), *chunks(1, stall_ms=30.0)]})
    assert scorecard.stalls([once, *still[1:]]).verdict == MISS
    assert scorecard.stalls([once]).longest_ms[STALL_SCENARIOS[0]] == 30.0
