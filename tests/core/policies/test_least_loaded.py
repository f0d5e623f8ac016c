"""least_loaded: own requests, which are certain, plus those of others as far as known."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.candidate import Candidate
from router.core.policies.least_loaded import least_loaded
from tests.core.fixtures import D0, candidate


def score(it: Candidate) -> float:
    """The score of a candidate by itself."""
    (only,) = least_loaded([it], [1], 0.0, Random(0))
    return only


@pytest.mark.parametrize(
    ("in_flight", "others", "expected"), [(0, None, 0), (3, None, 3), (3, 0, 3), (3, 4, 7)]
)
def test_the_score_is_the_number_of_requests(
    in_flight: int, others: int | None, expected: float
) -> None:
    assert score(candidate(D0, in_flight, others)) == expected


counts = st.integers(min_value=0, max_value=1000)
candidates = st.builds(candidate, st.just(D0), counts, st.none() | counts)


@given(st.lists(candidates, min_size=1))
def test_a_score_does_not_depend_on_the_other_candidates(given_ones: list[Candidate]) -> None:
    together = least_loaded(given_ones, [1] * len(given_ones), 0.0, Random(0))
    assert list(together) == [score(it) for it in given_ones]


@given(candidates)
def test_one_more_request_makes_a_candidate_worse(it: Candidate) -> None:
    before = score(it)
    it.load.add(1, 0, 0)
    assert score(it) > before
