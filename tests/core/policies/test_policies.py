"""What every policy in the table keeps to."""

from random import Random

import pytest

from router.core.policies import POLICIES
from tests.core.fixtures import D0, D1, D2, candidate

CANDIDATES = [
    candidate(D0, in_flight=2, ordinal=0),
    candidate(D1, others=3, ordinal=1),
    candidate(D2, ordinal=2),
]
UNCACHED = [400, 0, 400]


@pytest.mark.parametrize("name", sorted(POLICIES))
class TestEachPolicy:
    """One signature, one score for each candidate, and no memory."""

    def test_gives_each_candidate_a_score(self, name: str) -> None:
        scores = POLICIES[name](CANDIDATES, UNCACHED, 0.0, Random(0))
        assert [float(score) for score in scores] == list(scores)
        assert len(scores) == len(CANDIDATES)

    def test_gives_the_same_answer_again(self, name: str) -> None:
        policy = POLICIES[name]
        first = list(policy(CANDIDATES, UNCACHED, 0.0, Random(0)))
        assert list(policy(CANDIDATES, UNCACHED, 0.0, Random(0))) == first

    def test_leaves_the_candidates_alone(self, name: str) -> None:
        before = list(CANDIDATES)
        POLICIES[name](CANDIDATES, UNCACHED, 0.0, Random(0))
        assert before == CANDIDATES
