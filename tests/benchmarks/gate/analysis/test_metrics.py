from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.distributions import distribution
from benchmarks.gate.analysis.metrics import ErrorCount, Metrics, summarise
from tests.benchmarks.gate.runs import loop, request, round_robin, run


def test_latencies_are_aiperfs() -> None:
    found = summarise(run([request(sent=1.0, first=1.1, last=1.4, ended=9.0, output_tokens=4)]))
    assert found.ttft_ms is not None
    assert found.ttft_ms.p99 == pytest.approx(100)
    assert found.latency_ms is not None
    assert found.latency_ms.avg == pytest.approx(400), "up to the last content, not to the end"
    assert found.itl_ms is not None
    assert found.itl_ms.avg == pytest.approx(100), "(latency - TTFT) / (tokens - 1)"


def test_throughput_is_from_the_first_sent_to_the_last_content() -> None:
    early = request(0, sent=1.0, first=1.1, last=2.0, ended=2.5, output_tokens=30)
    late = request(1, sent=2.0, first=2.2, last=5.0, ended=7.0, output_tokens=50)
    found = summarise(run([early, late]))
    assert found.duration == pytest.approx(4.0)
    assert found.output_token_throughput == pytest.approx(20.0)
    assert found.request_throughput == pytest.approx(0.5)


def test_failures_are_counted_by_kind_and_in_no_figure() -> None:
    good = request(0)
    bad = [
        request(1, ended=good.last, error="timeout", status=None),
        request(2, ended=good.last, status=503, first=None, last=None, output_tokens=None, gaps=()),
        request(3, ended=good.last, status=503, first=None, last=None, output_tokens=None, gaps=()),
        request(4, ended=good.last, first=None, last=None, gaps=()),
        request(5, ended=None),
    ]
    alone, found = summarise(run([good])), summarise(run([good, *bad]))
    assert found.errors == 5
    assert found.error_share == pytest.approx(5 / 6)
    assert found.error_summary == (
        ErrorCount(503, "status 503", 2),
        ErrorCount(None, "timeout", 1),
        ErrorCount(200, "no content", 1),
        ErrorCount(200, "never ended", 1),
    )
    assert replace(found, errors=0, error_summary=()) == alone


def test_hanging_requests_make_no_engine_look_faster() -> None:
    """AIPerf 0.13 divides by its whole window, failures included."""
    good = request(0, sent=0.0, first=0.1, last=1.0, ended=1.0, output_tokens=100)
    hung = request(1, sent=0.0, first=None, last=None, ended=10.0, error="timeout", gaps=())
    assert summarise(run([good])).output_token_throughput == pytest.approx(100.0)
    found = summarise(run([good, hung]))
    assert found.output_token_throughput == pytest.approx(10.0)
    assert found.duration == pytest.approx(1.0)  # its benchmark_duration counts successes only


def test_cancelled_requests_are_not_in_the_verdict() -> None:
    seen = run([request(0), request(1, ended=None, last=None)], interrupted=True)
    found = summarise(seen)
    assert (found.requests, found.errors, found.unfinished) == (1, 0, 1)


def test_cancelled_requests_are_neither_answered_nor_failed() -> None:
    found = summarise(run([request(0), request(1, cancelled=True)]))
    assert (found.requests, found.errors, found.unfinished) == (1, 0, 1)
    assert found.error_summary == ()


def test_of_nothing_there_are_no_figures() -> None:
    assert summarise(run()) == Metrics(requests=0)
    assert distribution([]) is None


def test_one_token_has_no_time_between_tokens() -> None:
    assert summarise(run([request(output_tokens=1, gaps=())])).itl_ms is None


def test_the_result_has_the_number_of_answers_counted_by_chunks() -> None:
    found = summarise(run([request(0), request(1, output_tokens=None)]))
    assert found.chunk_counted == 1
    assert found.output_tokens is not None
    assert found.output_tokens.sum == 8


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50))
def test_percentiles_are_numpys_linear_ones_and_in_order(values: list[float]) -> None:
    found = distribution(values)
    assert found is not None
    assert found.p99 == np.percentile(values, 99)
    assert found.std == np.std(values), "of the population"
    points = (1, 5, 10, 25, 50, 75, 90, 95, 99)
    names = ["min", *(f"p{each}" for each in points), "max"]
    ordered = [getattr(found, name) for name in names]
    assert ordered == sorted(ordered) or np.ptp(values) < 1e-6, "but for rounding"


@given(st.floats(0, 1000), st.randoms())
def test_order_and_clock_change_no_figure(shift: float, chance: object) -> None:
    seen = loop(round_robin, concurrency=8, count=40, prefill_all=0.01)
    moved = [
        replace(
            each,
            sent=each.sent + shift,
            first=(each.first or 0) + shift,
            last=(each.last or 0) + shift,
            ended=(each.ended or 0) + shift,
        )
        for each in seen.requests
    ]
    chance.shuffle(moved)  # type: ignore[attr-defined]
    here, there = summarise(seen), summarise(run(moved))
    assert there.output_token_throughput == pytest.approx(here.output_token_throughput)
    assert there.ttft_p99_ms == pytest.approx(here.ttft_p99_ms, abs=1e-6)
