import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gate.traffic.cancellations import Cancellations


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
def test_the_share_is_the_requested_one(share: float) -> None:
    rule = Cancellations(share, after=0.5, seed=100)
    given_up = [number for number in range(10_000) if rule.after_of(number) is not None]
    # Five standard deviations.
    assert abs(len(given_up) - 10_000 * share) < 5 * (10_000 * share * (1 - share)) ** 0.5


@given(st.integers(0), st.integers(0, 2**40))
def test_none_and_all(seed: int, number: int) -> None:
    assert Cancellations(0.0, 0.5, seed).after_of(number) is None
    assert Cancellations(1.0, 0.5, seed).after_of(number) == 0.5


@given(st.floats(0, 1), st.integers(0), st.integers(0, 2**40))
def test_the_seed_and_the_number_decide(share: float, seed: int, number: int) -> None:
    first, again = (Cancellations(share, 1.0, seed).after_of(number) for _ in range(2))
    assert first == again


def test_another_seed_gives_up_others() -> None:
    ones, others = (
        [Cancellations(0.5, 1.0, seed).after_of(number) for number in range(100)] for seed in (1, 2)
    )
    assert ones != others


@pytest.mark.parametrize(("share", "after"), [(-0.1, 1), (1.1, 1), (0.1, -1), (0.1, float("nan"))])
def test_impossible_values_are_refused(share: float, after: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        Cancellations(share, after)
