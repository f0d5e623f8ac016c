import pytest

from benchmarks import stats
from benchmarks.scenarios import SCENARIOS
from tests.benchmarks.readings import JOB, job_reading, reading


def test_figures_are_per_unit_of_work() -> None:
    figures = stats.window_figures(reading())
    assert figures["cpu_us_per_chunk"] == pytest.approx(20.0)
    assert figures["cpu_us_per_request"] == pytest.approx(200.0)
    assert figures["router_cores"] == pytest.approx(0.005)
    assert figures["requests_per_s"] == pytest.approx(25.0)
    assert figures["chunks_per_s"] == pytest.approx(250.0)
    assert figures["reads_per_chunk"] == pytest.approx(0.9)
    assert figures["ttft_p99_ms"] == pytest.approx(4.0)
    assert figures["rss_mb"] == pytest.approx(90.0)
    assert figures["failures"] == 0


def test_every_metric_has_a_figure_and_the_other_way_round() -> None:
    assert set(stats.window_figures(reading())) == {metric.key for metric in stats.METRICS}
    for scenario in SCENARIOS.values():
        shown = {metric.key for metric in stats.metrics(scenario)}
        assert shown <= set(stats.figures(job_reading(), scenario))


def test_without_a_router_its_figures_are_absent() -> None:
    figures = stats.window_figures(reading(router_cpu_s=None, router_rss_bytes=None))
    assert figures["cpu_us_per_chunk"] is figures["rss_mb"] is figures["router_cores"] is None


def test_without_streams_there_are_no_chunks() -> None:
    figures = stats.window_figures(reading(load={"events": 0, "gap_p99_s": None}))
    assert figures["cpu_us_per_chunk"] is figures["chunks_per_s"] is figures["gap_p99_ms"] is None


def test_failures_of_all_kinds_add_up() -> None:
    figures = stats.window_figures(
        reading(load={"failures": {"status 500": 2, "connection lost": 1}})
    )
    assert figures["failures"] == 3


def test_a_summary_is_a_median_and_its_range() -> None:
    assert stats.summarise([3.0, None, 1.0, 10.0]) == stats.Summary(3.0, 1.0, 10.0, 3)


def test_a_summary_of_nothing_is_nothing() -> None:
    assert stats.summarise([None]) is None
    assert stats.summarise([]) is None


KEY = "cpu_us_per_chunk"


def rounds(*values: float | None) -> list[stats.Figures | None]:
    return [None if value is None else {KEY: value} for value in values]


def test_void_rounds_are_in_no_summary() -> None:
    summary = stats.summaries(rounds(10.0, None, 30.0), [KEY])[KEY]
    assert summary == stats.Summary(20.0, 10.0, 30.0, 2)


def test_ratios_are_paired_by_round() -> None:
    # The machine was twice as slow in the second round: for both.
    ratio = stats.ratios(rounds(15.0, 30.0), rounds(10.0, 20.0), [KEY])[KEY]
    assert ratio == stats.Summary(1.5, 1.5, 1.5, 2)


def test_a_round_that_is_void_for_one_is_in_no_ratio() -> None:
    ratio = stats.ratios(rounds(15.0, 30.0), rounds(10.0, None), [KEY])[KEY]
    assert ratio == stats.Summary(1.5, 1.5, 1.5, 1)


def test_there_is_no_ratio_to_zero() -> None:
    assert stats.ratios(rounds(1.0), rounds(0.0), [KEY])[KEY] is None


def test_a_jobs_rate_is_set_against_its_bound() -> None:
    figures = stats.figures(job_reading(), JOB)
    assert figures["of_bound"] == pytest.approx(0.8)  # 10 clients, 0.04 s per answer: 250
    assert figures["whole_p99_ms"] == pytest.approx(50.0)
    assert stats.returned(job_reading(), JOB) is None


def test_the_recovered_engines_share_is_counted_from_the_first_whole_second() -> None:
    arrivals = [[0] * 8 + [0, 10, 20, 10, 1], *[[40] * 8 + [20, 10, 10, 10, 1]] * 7]
    found = stats.returned(job_reading(engines={"arrivals": arrivals}), SCENARIOS["recovery"])
    assert found is not None
    assert found["shares"] == pytest.approx([0, 1, 160 / 90, 1])
    assert (found["back_after_s"], found["overshoot"]) == (2, pytest.approx(70 / 90))
