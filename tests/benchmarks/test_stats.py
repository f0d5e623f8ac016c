import pytest

from benchmarks import stats
from tests.benchmarks.readings import reading


def test_figures_are_per_unit_of_work() -> None:
    figures = stats.figures(reading())
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
    assert set(stats.figures(reading())) == {metric.key for metric in stats.METRICS}


def test_without_a_router_its_figures_are_absent() -> None:
    figures = stats.figures(reading(router_cpu_s=None, router_rss_bytes=None))
    assert figures["cpu_us_per_chunk"] is figures["rss_mb"] is figures["router_cores"] is None


def test_without_streams_there_are_no_chunks() -> None:
    figures = stats.figures(reading(load={"events": 0, "gap_p99_s": None}))
    assert figures["cpu_us_per_chunk"] is figures["chunks_per_s"] is figures["gap_p99_ms"] is None


def test_failures_of_all_kinds_add_up() -> None:
    figures = stats.figures(reading(load={"failures": {"status 500": 2, "connection lost": 1}}))
    assert figures["failures"] == 3


def test_a_summary_is_a_median_and_its_range() -> None:
    assert stats.summarise([3.0, None, 1.0, 10.0]) == stats.Summary(3.0, 1.0, 10.0, 3)


def test_a_summary_of_nothing_is_nothing() -> None:
    assert stats.summarise([None]) is None
    assert stats.summarise([]) is None


def rounds(*values: float | None) -> list[stats.Figures | None]:
    empty: dict[str, float | None] = {metric.key: None for metric in stats.METRICS}
    return [None if value is None else empty | {"cpu_us_per_chunk": value} for value in values]


def test_void_rounds_are_in_no_summary() -> None:
    summary = stats.summaries(rounds(10.0, None, 30.0))["cpu_us_per_chunk"]
    assert summary == stats.Summary(20.0, 10.0, 30.0, 2)


def test_ratios_are_paired_by_round() -> None:
    # The machine was twice as slow in the second round: for both.
    ratio = stats.ratios(rounds(15.0, 30.0), rounds(10.0, 20.0))["cpu_us_per_chunk"]
    assert ratio == stats.Summary(1.5, 1.5, 1.5, 2)


def test_a_round_that_is_void_for_one_is_in_no_ratio() -> None:
    ratio = stats.ratios(rounds(15.0, 30.0), rounds(10.0, None))["cpu_us_per_chunk"]
    assert ratio == stats.Summary(1.5, 1.5, 1.5, 1)


def test_there_is_no_ratio_to_zero() -> None:
    assert stats.ratios(rounds(1.0), rounds(0.0))["cpu_us_per_chunk"] is None
