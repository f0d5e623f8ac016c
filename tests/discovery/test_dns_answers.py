"""What DNS answers make believe."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.discovery.dns_answers import (
    LONGEST_SECONDS,
    SHORTEST_SECONDS,
    AcceptedAnswer,
    Answer,
    Host,
)

ANSWERS = st.lists(st.frozensets(st.sampled_from("abc"), max_size=2), max_size=12)


def test_an_empty_answer_is_believed_when_it_comes_twice() -> None:
    accepted = AcceptedAnswer()
    accepted.update("ab")
    accepted.update("")
    assert accepted.urls == {"a", "b"}
    accepted.update("")
    assert accepted.urls == frozenset()


def test_a_first_answer_is_held_unless_it_is_empty() -> None:
    for heard, is_held in (([], False), (["a"], True), ([""], False), (["", ""], True)):
        accepted = AcceptedAnswer()
        for urls in heard:
            accepted.update(urls)
        assert accepted.is_held == is_held


def test_an_answer_between_two_empty_ones_ends_the_doubt() -> None:
    accepted = AcceptedAnswer()
    for heard in ("a", "", "b", ""):
        accepted.update(heard)
    assert accepted.urls == {"b"}


@given(ANSWERS)
def test_the_last_plausible_answer_counts(answers: list[frozenset[str]]) -> None:
    accepted = AcceptedAnswer()
    for answer in answers:
        accepted.update(answer)
    if not answers or answers[-2:] == [frozenset()] * 2:
        assert not accepted.urls
    else:
        assert accepted.urls == next((each for each in reversed(answers) if each), frozenset())


@pytest.mark.parametrize(
    ("ttl", "seconds"), [(0, SHORTEST_SECONDS), (5, 5), (86400, LONGEST_SECONDS)]
)
def test_a_ttl_is_kept_within_limits(ttl: float, seconds: float) -> None:
    assert Answer((Host("a", 1),), ttl).seconds == seconds
