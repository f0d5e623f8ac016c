import pytest

from benchmarks.gate.analysis.metrics import summarise
from benchmarks.gate.analysis.slo import Goodput, InvalidSlo, Slo, goodput, parse
from tests.benchmarks.gate.runs import request, run


def test_an_objective_is_a_name_and_milliseconds() -> None:
    assert parse("ttft:2000") == Slo("ttft", 2000.0)
    assert str(parse("itl:12.50")) == "itl:12.5"


@pytest.mark.parametrize("text", ["", "ttft", "ttft:", "ttft:-1", "ttft:0", "tpot:5", "e2e:nan"])
def test_unusable_thresholds_are_refused(text: str) -> None:
    with pytest.raises(InvalidSlo):
        parse(text)


# The plain request: first token after 100 ms, 10 ms between four, the last after 130 ms.
@pytest.mark.parametrize(
    ("text", "met"),
    [
        ("ttft:101", True),
        ("ttft:99", False),
        ("itl:10.1", True),
        ("itl:9.9", False),
        ("e2e:131", True),
        ("e2e:129", False),
    ],
)
def test_figures_are_those_of_the_metrics(text: str, met: bool) -> None:
    assert parse(text).met_by(request()) is met


def test_one_token_has_no_gap_to_be_late() -> None:
    assert parse("itl:1").met_by(request(output_tokens=1, gaps=()))


def test_one_request_must_meet_all_and_failures_meet_none() -> None:
    slow_start = request(1, first=0.3, last=0.33)
    slow_end = request(2, last=0.4, gaps=(0.1, 0.1, 0.1))
    failed = request(3, error="connection lost")
    seen = run([request(0), slow_start, slow_end, failed])
    metrics = summarise(seen)
    found = goodput(seen, metrics, [parse("ttft:200"), parse("itl:50")])
    assert found is not None
    assert (found.good, found.ended, found.share) == (1, 4, 0.25)
    assert found.per_second == pytest.approx(1 / 0.4)
    assert found.line == (
        "Goodput (ttft:200 itl:50 ms): 1 of 4 requests (25.0%), 2.50 requests/sec"
    )


def test_goodput_is_over_the_same_time_as_throughput() -> None:
    """A request that hung until it timed out lengthens both."""
    hung = request(9, first=None, last=None, ended=120.0, error="timed out after 120 s")
    seen = run([*(request(number) for number in range(9)), hung])
    metrics = summarise(seen)
    found = goodput(seen, metrics, [parse("ttft:200")])
    assert found is not None
    assert found.good == 9
    assert found.per_second == pytest.approx(9 / 120)
    assert found.per_second == pytest.approx(metrics.request_throughput)


def test_no_constraints_give_no_lines() -> None:
    seen = run([request()])
    assert goodput(seen, summarise(seen), []) is None


def test_nothing_answered_has_no_rate() -> None:
    seen = run([request(error="status 500", first=None, last=None)])
    found = goodput(seen, summarise(seen), [parse("ttft:1")])
    assert found == Goodput(("ttft:1",), 0, 1, None)
    assert "requests/sec" not in found.line
