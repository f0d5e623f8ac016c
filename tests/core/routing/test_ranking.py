"""The choice among equals, and a ranking's figures of the chosen one."""

from hypothesis import given
from hypothesis import strategies as st

from router.core.routing.ranking import Ranking, least_recent_first
from tests.core.fixtures import D0, D1, candidate

scored = st.tuples(st.sampled_from([0.0, 1.0, 2.0]), st.integers(0, 9))


@given(st.lists(scored, min_size=1, max_size=8))
def test_best_wins_then_least_recently_chosen(given_scores: list[tuple[float, int]]) -> None:
    candidates, score_of = [], {}
    for score, chosen_at in given_scores:
        one = candidate(D0)
        one.chosen_at = chosen_at
        score_of[one] = score
        candidates.append(one)
    least_recent_first(candidates)
    scores = [score_of[one] for one in candidates]
    chosen = candidates[scores.index(min(scores))]
    assert (score_of[chosen], chosen.chosen_at) == min(given_scores)


def test_a_ranking_has_the_prompt_estimate_of_the_chosen_endpoint() -> None:
    first, second = candidate(D0), candidate(D1)
    ranking = Ranking((first, second), (700, 300), (2.0, 1.0), 1)
    assert ranking.endpoint == D1
    assert ranking.prompt == (second, 300)
