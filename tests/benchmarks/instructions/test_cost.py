from collections import Counter

from benchmarks.instructions.cost import Cost, per_unit


def test_one_time_costs_of_a_load_are_in_no_unit() -> None:
    smaller = Counter(instructions=1000 + 40 * 7)
    larger = Counter(instructions=1000 + 120 * 7)
    assert per_unit(smaller, larger, 80) == {"instructions": 7}


def test_a_name_that_only_one_load_has_counts_there() -> None:
    cost = per_unit(Counter(close=1, read=10), Counter(close=1, read=90, madvise=2), 80)
    assert cost == {"close": 0, "madvise": 0.025, "read": 1}


def test_all_calls() -> None:
    assert Cost(1.0, {"read": 2.0, "write": 1.0}).all_calls == 3
    assert Cost(1.0, None).all_calls is None
