"""WaitingLegs: which prompts count as computed although no token has been seen."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.fleet.ledger import Ledger
from router.core.fleet.leg_timer import LegTimer
from router.core.speed.speed_estimator import SpeedEstimator
from tests.core.fixtures import D0


def unary_leg(speed: SpeedEstimator, ledger: Ledger, tokens: int, now: float) -> LegTimer:
    """A unary request, whose prompt this engine computes."""
    lease = ledger.lease(D0, tokens, tokens)
    return LegTimer(speed.counts, lease, lease.pending_there, now, tracks_first_token=False)


def test_a_unary_prompt_is_pending_for_twice_the_time_to_first_token_not_for_the_whole_answer() -> (
    None
):
    speed, ledger = SpeedEstimator(), Ledger()
    unary_leg(speed, ledger, 1000, 0.0)
    unary_leg(speed, ledger, 500, 1.0)  # computed behind the first one: 1,500 tokens
    pending = []
    for now in (1.9, 2.0, 3.9, 4.0):
        speed.settle_prompts(0.001, now)
        pending.append(ledger.load(D0).pending)
    assert pending == [1500, 500, 500, 0]
    LegTimer(speed.counts, None, 100, 4.0, tracks_first_token=False)  # a lease of another leg, say
    speed.settle_prompts(0.001, 9.0)
    assert not speed.counts.waiting.unary
    assert ledger.load(D0).requests == 2


@given(st.lists(st.sampled_from(["settle", "answer", "end"]), max_size=6))
def test_a_unary_prompt_is_subtracted_from_pending_tokens_once(events: list[str]) -> None:
    speed, ledger = SpeedEstimator(), Ledger()
    other = ledger.lease(D0, 7, 7)
    leg = unary_leg(speed, ledger, 1000, 0.0)
    for event in events:
        match event:
            case "settle":
                speed.settle_prompts(0.001, 9.0)
            case "answer":
                leg.unary_answer(9.0, 100)
            case "end":
                leg.end(9.0)
    leg.end(9.0)
    assert not speed.counts.waiting.unary
    assert leg._lease is not None
    leg._lease.release()
    assert ledger.load(D0).pending == 7
    other.release()


@pytest.mark.parametrize("is_overtaken", [True, False])
def test_a_prompt_with_held_back_tokens_is_not_pending(is_overtaken: bool) -> None:
    """A later request has had its first token, or the engine generates without waiting requests."""
    speed, ledger = SpeedEstimator(), Ledger()
    lease = ledger.lease(D0, 5000, 5000)
    held = LegTimer(speed.counts, lease, lease.pending_there, 1.0, tracks_first_token=True)
    if is_overtaken:
        LegTimer(speed.counts, None, 0, 2.0, tracks_first_token=True).first_token(2.1)
    else:
        speed.settle_held(3.0, 4.0)
    speed.tick(4.0)
    assert ledger.load(D0).pending == 0
    assert speed.counts.oldest_waiting is None
    held.first_token(40.0)
    speed.tick(40.25)
    assert speed.per_prompt_token is None  # the time of the prompt's computation is unknown
    assert speed.counts.first_token_seconds is None


def test_a_first_token_that_was_held_back_is_no_time_to_first_token() -> None:
    speed = SpeedEstimator()
    held = LegTimer(speed.counts, None, 10, 1.0, tracks_first_token=True)
    speed.settle_held(3.0, 4.0)
    held.first_token(40.0)
    assert speed.counts.first_token_seconds == 0.0


@pytest.mark.parametrize(("sent", "work"), [(3.0, 10), (1.0, 100_000)])
def test_a_prompt_that_may_still_be_computed_is_pending(sent: float, work: int) -> None:
    """It was sent after the scrape, or takes longer."""
    speed, ledger = SpeedEstimator(), Ledger()
    lease = ledger.lease(D0, work, work)
    LegTimer(speed.counts, lease, work, sent, tracks_first_token=True)
    speed.settle_held(3.0, 4.0)
    assert ledger.load(D0).pending == work
    assert speed.counts.oldest_waiting == (sent, work)


def in_progress(tokens: int, sent: float) -> tuple[SpeedEstimator, LegTimer]:
    """An engine that computes 1,000 tokens a second, and its only prompt."""
    speed = SpeedEstimator()
    speed.counts.prompt_seconds = 0.001
    lease = Ledger().lease(D0, tokens, tokens)
    return speed, LegTimer(speed.counts, lease, tokens, sent, tracks_first_token=True)


def test_a_prompt_in_progress_is_computed_as_far_as_time_has_passed() -> None:
    speed, _ = in_progress(4000, 10.0)
    assert [speed.counts.progress(now) for now in (9.0, 10.0, 10.5, 14.0, 17.9)] == [
        0,
        0,
        500,
        4000,
        4000,
    ]


def test_an_overdue_prompt_counts_as_waiting() -> None:
    """For a slot; or the engine hangs."""
    speed, _ = in_progress(4000, 10.0)
    assert speed.counts.progress(18.1) == 0.0


def test_a_prompt_that_fits_into_one_step_is_not_in_progress() -> None:
    speed, _ = in_progress(2048, 10.0)
    assert speed.counts.progress(11.0) == 0.0


def test_a_prompt_is_in_progress_from_the_end_of_the_one_before() -> None:
    speed, first = in_progress(1000, 10.0)
    lease = Ledger().lease(D0, 3000, 3000)
    LegTimer(speed.counts, lease, 4000, 10.2, tracks_first_token=True)
    first.first_token(11.0)
    assert speed.counts.progress(12.5) == pytest.approx(1500.0)


def test_a_unary_prompt_is_in_progress_from_when_the_one_before_was_taken_for_computed() -> None:
    speed, ledger = SpeedEstimator(), Ledger()
    speed.counts.prompt_seconds = 0.001
    unary_leg(speed, ledger, 1000, 10.0)
    unary_leg(speed, ledger, 3000, 10.0)
    speed.settle_prompts(0.001, 12.0)
    assert speed.counts.progress(12.7) == pytest.approx(700.0)


def test_nothing_is_known_of_progress_before_prompts_were_measured() -> None:
    speed, _ = in_progress(4000, 10.0)
    speed.counts.prompt_seconds = 0.0
    assert speed.counts.progress(11.0) == 0.0
