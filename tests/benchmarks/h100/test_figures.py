"""What the runs conclude from what they saw."""

from benchmarks.h100.client import Stream, ids, milliseconds
from benchmarks.h100.killed import summary
from benchmarks.h100.speed import capacity
from benchmarks.h100.transfer import common, crossing

VICTIM, OTHER = "http://127.0.0.1:1", "http://127.0.0.1:2"


def probes(*figures: float) -> list[dict[str, float]]:
    return [{"tokens": 256 * 2**at, "ttft": figure} for at, figure in enumerate(figures)]


def test_the_threshold_is_where_remote_stays_earlier() -> None:
    assert crossing(probes(10, 20, 40), probes(15, 15, 30), "ttft") == 512


def test_a_single_win_below_a_loss_is_no_threshold() -> None:
    assert crossing(probes(10, 20, 40), probes(5, 25, 30), "ttft") == 1024


def test_remote_may_never_win() -> None:
    assert crossing(probes(10, 20, 40), probes(5, 15, 50), "ttft") is None


def test_streams_of_a_killed_engine_are_told_from_the_others() -> None:
    whole = Stream(times=[1.0, 1.1, 1.9], engine=VICTIM, finish="length")
    torn = Stream(times=[1.0], engine=VICTIM, error="engine lost")
    other = Stream(times=[1.0, 1.1, 1.2], engine=OTHER, finish="length")
    found = summary([whole, torn, other], VICTIM, tokens=3)
    assert (found["its_streams"]["streams"], found["its_streams"]["whole"]) == (2, 1)
    assert found["its_streams"]["longest_gap_ms"] == 800
    assert found["its_streams"]["errors"] == ["engine lost"]
    assert (found["others"]["whole"], found["others"]["events_missing"]) == (1, 0)


def test_the_capacity_is_read_from_the_metrics() -> None:
    text = 'other 1\nvllm:cache_config_info{block_size="16",num_gpu_blocks="2340"} 1.0\n'
    assert capacity(text) == 37_440
    assert capacity("other 1\n") is None


def test_prompts_differ_by_seed_only() -> None:
    assert ids(1, 50) == ids(1, 50) != ids(2, 50)


def test_percentiles_are_in_milliseconds() -> None:
    assert milliseconds([0.003, 0.001, 0.002], 0.5) == 2
    assert milliseconds([], 0.5) is None


def test_answers_are_compared_up_to_where_they_part() -> None:
    assert common([1, 2, 3], [1, 2, 4]) == 2
    assert common([1, 2], [2, 2]) == 0
