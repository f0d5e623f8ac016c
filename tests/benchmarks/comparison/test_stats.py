from dataclasses import replace

import pytest

from benchmarks.comparison import stats
from benchmarks.comparison.scenarios import SCENARIOS
from benchmarks.distributions import Summary
from benchmarks.system.inside import Stalls
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
    relay = SCENARIOS["relay"]
    assert set(stats.figures(reading(), relay)) == {metric.key for metric in stats.METRICS}
    for scenario in SCENARIOS.values():
        shown = {metric.key for metric in stats.metrics(scenario)}
        # What is over another router's figure is not of one reading.
        found = set(stats.figures(job_reading(), scenario)) | {stats.ADDED_METRIC.key}
        assert shown <= found


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


KEY = "cpu_us_per_chunk"


def rounds(*values: float | None) -> list[stats.Figures | None]:
    return [None if value is None else {KEY: value} for value in values]


def test_void_rounds_are_in_no_summary() -> None:
    summary = stats.summaries(rounds(10.0, None, 30.0), [KEY])[KEY]
    assert summary == Summary(20.0, 10.0, 30.0, 2)


def test_ratios_are_paired_by_round() -> None:
    # The machine was twice as slow in the second round: for both.
    ratio = stats.ratios(rounds(15.0, 30.0), rounds(10.0, 20.0), [KEY])[KEY]
    assert ratio == Summary(1.5, 1.5, 1.5, 2)


def test_a_round_that_is_void_for_one_is_in_no_ratio() -> None:
    ratio = stats.ratios(rounds(15.0, 30.0), rounds(10.0, None), [KEY])[KEY]
    assert ratio == Summary(1.5, 1.5, 1.5, 1)


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


def test_memory_per_open_stream_is_the_growth_under_load() -> None:
    seen = reading(router_rss_idle_bytes=50 << 20, router_rss_close_bytes=60 << 20)
    figures = stats.figures(seen, replace(SCENARIOS["idle-streams"], clients=1024))
    assert figures["kib_per_stream"] == pytest.approx(10.0)
    assert stats.figures(reading(), SCENARIOS["idle-streams"])["kib_per_stream"] is None


def test_memory_of_slow_clients_is_the_growth_inside_the_window() -> None:
    seen = reading(
        router_rss_idle_bytes=1, router_rss_open_bytes=10 << 20, router_rss_close_bytes=11 << 20
    )
    figures = stats.figures(seen, replace(SCENARIOS["slow-client"], clients=128))
    assert figures["growth_kib_per_slow"] == pytest.approx(16.0)


def test_latency_added_to_a_direct_connection_is_paired_by_round() -> None:
    mine = [{"ttft_p50_ms": 1.0}, {"ttft_p50_ms": 3.0}, None, {"ttft_p50_ms": 3.0}]
    added = stats.over_direct(mine, [{"ttft_p50_ms": 0.25}, None, {"ttft_p50_ms": 1.0}, mine[0]])
    assert [each and each["added_ttft_p50_ms"] for each in added] == [0.75, None, None, 2.0]


def test_stalls_are_shown_if_a_router_reports_them() -> None:
    told = reading(stalls=Stalls(0.03, 2.0))
    figures = stats.figures(told, SCENARIOS["relay"])
    assert (figures["stall_ms"], figures["stalls_over_20ms"]) == (30.0, 2.0)
    assert stats.figures(reading(), SCENARIOS["relay"])["stall_ms"] is None


def test_waits_before_the_accept_are_shown_where_clients_connect_in_the_turn() -> None:
    told = job_reading(stalls=Stalls(0.03, 2.0, 0.25))
    for name in ("burst", "saturated-2048"):
        figures = stats.figures(told, SCENARIOS[name])
        assert figures["accept_p99_ms"] == 250.0
        assert stats.ACCEPT_METRIC in stats.metrics(SCENARIOS[name])
    assert stats.figures(job_reading(), SCENARIOS["burst"])["accept_p99_ms"] is None
    assert "accept_p99_ms" not in stats.figures(told, SCENARIOS["healthy"])


def test_rates_need_more_than_one_request_per_client() -> None:
    shown = {
        name: {metric.key for metric in stats.metrics(SCENARIOS[name])}
        for name in ("burst", "saturated-1024")
    }
    assert "requests_per_s" not in shown["burst"]
    assert "requests_per_s" in shown["saturated-1024"]
