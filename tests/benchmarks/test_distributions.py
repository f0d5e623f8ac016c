import pytest

from benchmarks.distributions import Summary, middle_rate, summarise


def test_the_middle_is_the_half_of_the_completions() -> None:
    even = [float(n) for n in range(101)]
    assert middle_rate(even) == pytest.approx(1.0)
    slow_edges = [n * 10.0 if n < 25 else 300.0 + n for n in range(76)]
    slow_edges += [1000.0 * n for n in range(76, 101)]
    assert middle_rate(slow_edges) == pytest.approx(1.0)
    assert middle_rate(list(reversed(even))) == pytest.approx(1.0)


@pytest.mark.parametrize("ends", [[], [1.0], [1.0] * 50])
def test_there_is_no_middle_of_nothing(ends: list[float]) -> None:
    assert middle_rate(ends) is None


def test_a_summary_is_a_median_and_its_range() -> None:
    assert summarise([3.0, None, 1.0, 10.0]) == Summary(3.0, 1.0, 10.0, 3)


def test_a_summary_of_nothing_is_nothing() -> None:
    assert summarise([None]) is None
    assert summarise([]) is None
