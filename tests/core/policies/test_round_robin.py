"""round_robin: all candidates are equal."""

from random import Random

from router.core.policies.round_robin import round_robin
from tests.core.fixtures import D0, D1, candidate


def test_all_candidates_score_the_same_whatever_their_load() -> None:
    candidates = [candidate(D0, in_flight=5, others=9), candidate(D1)]
    assert len(set(round_robin(candidates, [1, 1], 0.0, Random(0)))) == 1


def test_each_candidate_has_a_score() -> None:
    assert len(round_robin([candidate(D0)] * 3, [1] * 3, 0.0, Random(0))) == 3
