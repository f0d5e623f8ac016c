import pytest

from benchmarks.loadgen import spans
from benchmarks.loadgen.spans import Span


def test_a_job_is_measured_from_its_first_request_to_its_last_answers_end() -> None:
    found = spans.figures([Span(100.0, 100.1, 101.0), Span(100.5, 100.8, 104.0)], began=99.9)
    assert found["wall_s"] == pytest.approx(4.0)
    assert found["requests_per_s"] == pytest.approx(0.5)
    assert found["first_p50_s"] == pytest.approx(0.2)
    assert found["whole_max_s"] == pytest.approx(3.5)
    assert found["completions"] == [0, 1, 0, 0, 1]


def test_requests_of_a_freeze_are_those_that_start_in_it() -> None:
    seen = [
        Span(at, at + ttft, at + 1) for at, ttft in ((14.9, 0.9), (15, 0.1), (20, 0.2), (25, 0.9))
    ]
    found = spans.figures(seen, began=10.0, frozen=(5, 15))
    assert (found["frozen_requests"], found["frozen_first_max_s"]) == (2, pytest.approx(0.2))


def test_a_job_in_which_all_failed_has_no_figures() -> None:
    found = spans.figures([], began=0.0, frozen=(1, 2))
    assert found["requests_per_s"] is found["whole_p99_s"] is found["frozen_first_p99_s"] is None


def test_requests_belong_to_the_period_in_which_they_were_sent() -> None:
    sent = (10.0, 10.0 + spans.PERIOD_S - 1, 10.0 + 2 * spans.PERIOD_S)
    seen = [Span(at, at + ttft, at + 3) for at, ttft in zip(sent, (0.1, 0.1, 0.5), strict=True)]
    first, second, third = spans.periods(seen, began=10.0)
    assert (first["requests"], first["first_p99_s"]) == (2, pytest.approx(0.1))
    assert second == {"requests": 0, "first_p50_s": None, "first_p99_s": None}
    assert (third["requests"], third["first_p50_s"]) == (1, pytest.approx(0.5))
    assert spans.periods([], began=10.0) == []
