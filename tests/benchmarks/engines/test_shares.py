from collections import Counter

import pytest

from benchmarks.engines import shares


def test_a_timeline_has_every_second() -> None:
    assert shares.timeline(Counter({0: 3, 2: 1})) == [3, 0, 1]
    assert shares.timeline(Counter()) == []


def test_shares_are_relative_to_the_fair_one_without_the_last_second() -> None:
    arrivals = [[0, 1, 4, 0, 9], [4, 3, 0], [4, 4, 4], [4, 4, 0]]
    assert shares.share(arrivals, 0, 0) == pytest.approx([0, 4 / 12, 2, None])
    assert shares.share(arrivals, 0, 2) == [2, None]
    assert shares.share([[], []], 0, 0) == []


def test_back_is_the_end_of_the_first_of_two_fair_seconds_in_a_row() -> None:
    found = shares.returned([1.0, None, 0.79, 0.8, 1.5])
    assert (found["back_after_s"], found["overshoot"]) == (4, 0.5)
    assert shares.returned([0.8, 0.8])["back_after_s"] == 1
    assert shares.returned([0.8, 0.7, 0.8])["back_after_s"] is None


def test_one_that_never_came_back() -> None:
    assert shares.returned([0.1, 0.2])["back_after_s"] is None
    assert shares.returned([0.1, 0.2])["overshoot"] == 0
    assert shares.returned([])["overshoot"] is None
