"""LegTimer: a leg's contribution to an engine's speed; each is counted once, however it ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from router.core.fleet.ledger import Ledger
from router.core.fleet.leg_timer import MAX_TIMED_SEQUENCES, MIN_UNARY_TOKENS, LegTimer
from router.core.speed.speed_estimator import SpeedEstimator
from router.core.speed.tuning import PROMPT_OVERHEAD
from tests.core.fixtures import D0
from tests.core.speed.test_speed_estimator import open_leg, run


@pytest.mark.parametrize(
    ("tokens", "work", "is_measured"),
    [(MIN_UNARY_TOKENS, 10, True), (MIN_UNARY_TOKENS - 1, 10, False), (MIN_UNARY_TOKENS, 0, False)],
)
def test_long_unary_answer_measures_speed(tokens: int, work: int, is_measured: bool) -> None:
    speed = SpeedEstimator()
    leg = LegTimer(speed.counts, None, work, 0.0, tracks_first_token=False)
    leg.unary_answer(3.2, tokens)
    leg.end(3.2)
    speed.tick(3.25)
    assert (speed.per_token == pytest.approx(0.1)) if is_measured else speed.per_token is None
    assert speed.counts.open == 0


@pytest.mark.parametrize(
    ("tokens", "work", "is_measured"),
    [(1, 10, True), (MIN_UNARY_TOKENS, 10, False), (0, 10, False), (1, 0, False)],
)
def test_a_short_unary_answer_measures_its_prompt(
    tokens: int, work: int, is_measured: bool
) -> None:
    speed = SpeedEstimator()
    for _ in range(8):
        LegTimer(speed.counts, None, work, 0.0, tracks_first_token=False).unary_answer(3.0, tokens)
    speed.tick(3.25)
    expected = pytest.approx(3.0 / (10 + 90)) if is_measured else None
    assert speed.counts.answers.per_prompt_token(90.0) == expected


@pytest.mark.parametrize(
    ("tokens", "work", "is_measured"), [(1, 10, True), (2, 10, False), (1, 0, False)]
)
def test_a_stream_of_one_token_measures_its_prompt(
    tokens: int, work: int, is_measured: bool
) -> None:
    """It has no time between two tokens."""
    speed = SpeedEstimator()
    for _ in range(8):
        leg = LegTimer(speed.counts, None, work, 0.0, tracks_first_token=True)
        leg.first_token(3.0)
        leg.calibrate(tokens, tokens, 3.0)
        leg.end(3.0)
    speed.tick(3.25)
    expected = pytest.approx(3.0 / (10 + 90)) if is_measured else None
    assert speed.counts.answers.per_prompt_token(90.0) == expected


def test_a_stream_whose_client_did_not_read_is_timed_again_after_two_sweeps() -> None:
    speed = SpeedEstimator()
    leg = LegTimer(speed.counts, None, 10, 0.0, tracks_first_token=True)
    leg.first_token(1.0)
    leg.client_stopped(2.0)
    assert (speed.counts.open, speed.counts.streams) == (0, 0)
    assert not leg.catches_up(3.0)
    leg.client_stopped(3.5)  # again: it has not kept up for long
    assert not leg.catches_up(4.0)
    assert speed.counts.open == 0
    assert leg.catches_up(5.0)
    assert (leg.sweeps_to_wait, speed.counts.open, speed.counts.streams) == (0, 1, 1)
    leg.end(6.0)
    assert speed.counts.open == 0


def test_a_stream_of_many_sequences_is_not_counted_again() -> None:
    speed = SpeedEstimator()
    leg = LegTimer(
        speed.counts, None, 10, 0.0, tracks_first_token=True, sequences=MAX_TIMED_SEQUENCES + 1
    )
    leg.client_stopped(2.0)
    assert not leg.catches_up(3.0)
    assert leg.catches_up(4.0)
    assert leg.counter is not speed.counts.counter


def test_a_prefill_counts_when_its_reply_is_whole() -> None:
    speed = SpeedEstimator()
    ledger = Ledger()
    lease = ledger.lease(D0, 100, 100)
    leg = LegTimer(speed.counts, lease, lease.pending_there, 1.0, tracks_first_token=True)
    assert (speed.counts.open, ledger.load(D0).pending) == (1, 100)
    leg.unary_answer(2.0)
    assert (speed.counts.last_token_at, ledger.load(D0).pending) == (2.0, 0)
    leg.end(2.0)
    leg.end(2.0)
    speed.tick(2.25)
    assert speed.counts.open == 0
    assert speed.per_prompt_token == pytest.approx(1 / (100 + PROMPT_OVERHEAD))


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=20))
def test_ended_leg_leaves_nothing_behind(legs: list[tuple[bool, bool]]) -> None:
    speed = SpeedEstimator()
    for tracks_first_token, begins in legs:
        leg = LegTimer(speed.counts, None, 1, 0.0, tracks_first_token=tracks_first_token)
        if begins:
            leg.first_token(1.0)
        leg.end(2.0)
        leg.end(2.0)
    assert (speed.counts.open, speed.counts.streams) == (0, 0)


def test_a_stream_that_is_paused_counts_neither_as_open_nor_as_a_stream() -> None:
    speed = SpeedEstimator()
    leg, other = open_leg(speed), open_leg(speed)
    now = run(speed, 2.0, gap=0.05)
    leg.pause(now)
    leg.pause(now)
    assert (speed.counts.open, speed.counts.streams) == (1, 1)
    now = run(speed, 8.0, gap=0.05, at=now)
    assert speed.per_token == pytest.approx(0.05, rel=0.05)
    leg.resume(now)
    leg.resume(now)
    assert (speed.counts.open, speed.counts.streams) == (2, 2)
    run(speed, 4.0, gap=0.05, at=now)
    assert speed.per_token == pytest.approx(0.05, rel=0.05)
    leg.end(now)
    other.end(now)
    assert (speed.counts.open, speed.counts.streams) == (0, 0)


def test_a_pause_is_no_silence_and_its_end_no_sign_of_life() -> None:
    speed = SpeedEstimator()
    leg, other = open_leg(speed), open_leg(speed)
    leg.pause(1.0)
    other.pause(1.0)
    speed.tick(9.0)
    assert speed.per_token is None or speed.per_token <= 1.0
    other.end(9.0)
    leg.resume(9.0)
    assert [speed.counts.begun, speed.counts.last_token_at] == [0, 0.0]
    open_leg(speed, 9.0)
    leg.pause(10.0)
    leg.resume(11.0)
    assert [speed.counts.begun, speed.counts.last_token_at] == [1, 9.0]


def test_a_leg_that_is_resumed_before_its_first_token_waits_behind_those_that_wait() -> None:
    speed = SpeedEstimator()
    leg = LegTimer(speed.counts, None, 1000, 1.0, tracks_first_token=True)
    LegTimer(speed.counts, None, 10, 2.0, tracks_first_token=True)
    leg.pause(3.0)
    leg.resume(4.0)
    assert list(speed.counts.oldest_waiting or ()) == [2.0, 10]
    assert [leg.started, leg.work] == [4.0, 0]
    leg.pause(5.0)
    leg.first_token(6.0)
    leg.resume(7.0)
    assert list(speed.counts.oldest_waiting or ()) == [2.0, 10]  # it has begun: it waits no more


def test_a_leg_that_is_paused_before_its_first_token_measures_no_prompt() -> None:
    speed, ledger = SpeedEstimator(), Ledger()
    lease = ledger.lease(D0, 100, 100)
    leg = LegTimer(speed.counts, lease, lease.pending_there, 0.0, tracks_first_token=True)
    leg.pause(1.0)
    assert (speed.counts.open, speed.counts.streams) == (0, 0)
    leg.first_token(60.0)
    assert (speed.counts.open, speed.counts.streams, ledger.load(D0).pending) == (0, 0, 0)
    leg.resume(61.0)
    assert (speed.counts.open, speed.counts.streams) == (1, 1)
    speed.tick(61.25)
    assert speed.per_prompt_token is None
    leg.end(62.0)
    assert (speed.counts.open, speed.counts.streams) == (0, 0)


@pytest.mark.parametrize("tracks_first_token", [True, False])
def test_a_leg_that_ends_while_it_is_paused_is_counted_out_once(tracks_first_token: bool) -> None:
    speed = SpeedEstimator()
    leg = LegTimer(speed.counts, None, 1, 0.0, tracks_first_token=tracks_first_token)
    leg.first_token(1.0)
    leg.pause(2.0)
    leg.end(3.0)
    leg.resume(4.0)
    leg.pause(5.0)
    leg.end(6.0)
    assert (speed.counts.open, speed.counts.streams) == (0, 0)


class Legs(RuleBasedStateMachine):
    """Legs begin, get tokens and end in any order while time passes."""

    def __init__(self) -> None:
        super().__init__()
        self.speed = SpeedEstimator()
        self.legs: list[LegTimer] = []
        self.now = 0.0

    @rule(tracks_first_token=st.booleans(), sequences=st.sampled_from([1, 4, 16, 17, 1000]))
    def ask(self, tracks_first_token: bool, sequences: int) -> None:
        self.legs.append(
            LegTimer(self.speed.counts, None, 5, self.now, tracks_first_token, sequences=sequences)
        )

    @rule(place=st.integers(0, 9))
    def get_a_token(self, place: int) -> None:
        if place < len(self.legs) and not self.legs[place]._has_begun:
            self.legs[place].first_token(self.now)

    @rule(place=st.integers(0, 9), count=st.integers(1, 20))
    def end_some(self, place: int, count: int) -> None:
        if place < len(self.legs):
            self.legs[place].sequences_ended(count, self.now)

    @rule(place=st.integers(0, 9))
    def speak(self, place: int) -> None:
        if place < len(self.legs):
            self.legs.pop(place).end(self.now)

    @rule(place=st.integers(0, 9), tokens=st.integers(0, 100))
    def begin(self, place: int, tokens: int) -> None:
        if place < len(self.legs):
            leg = self.legs.pop(place)
            if not leg._has_begun:
                leg.first_token(self.now)
            self.speed.counts.counter.tokens += tokens
            leg.end(self.now)

    @rule(place=st.integers(0, 9))
    def pause(self, place: int) -> None:
        if place < len(self.legs):
            self.legs[place].pause(self.now)

    @rule(place=st.integers(0, 9))
    def resume(self, place: int) -> None:
        if place < len(self.legs):
            self.legs[place].resume(self.now)

    @rule(seconds=st.floats(-1, 100))
    def passes(self, seconds: float) -> None:
        self.now += seconds
        self.speed.tick(self.now)

    @invariant()
    def nothing_is_negative(self) -> None:
        speed = self.speed
        assert speed.counts.open >= speed.counts.streams >= speed.counts.surplus >= 0
        assert 0 <= speed.counts.sure_streams <= len(self.legs)
        assert self.speed.per_token is None or self.speed.per_token >= 0


TestLegs = Legs.TestCase


def test_several_answers_to_one_request_are_as_many_sequences() -> None:
    """n=4: four tokens come in a step, and none of the four is faster for it."""
    speed = SpeedEstimator()
    leg = LegTimer(speed.counts, None, 10, 0.0, tracks_first_token=True, sequences=4)
    leg.first_token(0.0)
    assert (speed.counts.open, speed.counts.streams) == (4, 4)
    run(speed, 4.0, gap=0.05)
    assert speed.per_token == pytest.approx(0.05, rel=0.05)
    leg.end(4.0)
    assert (speed.counts.open, speed.counts.streams) == (0, 0)


def test_answers_that_have_ended_do_not_make_the_others_slow() -> None:
    speed = SpeedEstimator()
    leg = LegTimer(speed.counts, None, 10, 0.0, tracks_first_token=True, sequences=4)
    leg.first_token(0.0)
    assert speed.counts.sure_streams == 1
    leg.sequences_ended(3, 0.0)
    assert (speed.counts.open, speed.counts.streams, speed.counts.sure_streams) == (1, 1, 1)
    run(speed, 4.0, gap=0.05)
    assert speed.per_token == pytest.approx(0.05, rel=0.05)
    leg.sequences_ended(5, 4.0)  # an engine may say anything
    assert speed.counts.streams == 1
    leg.end(4.0)
    assert (speed.counts.open, speed.counts.streams, speed.counts.surplus) == (0, 0, 0)


def test_answers_that_end_while_the_client_does_not_read_are_not_resumed() -> None:
    speed = SpeedEstimator()
    leg = LegTimer(speed.counts, None, 10, 0.0, tracks_first_token=True, sequences=4)
    leg.first_token(0.0)
    leg.pause(1.0)
    leg.sequences_ended(2, 2.0)
    assert (speed.counts.open, speed.counts.streams, speed.counts.surplus) == (0, 0, 0)
    leg.resume(3.0)
    assert (speed.counts.open, speed.counts.streams, speed.counts.surplus) == (2, 2, 1)


@pytest.mark.parametrize("is_stream", [True, False])
def test_of_very_many_answers_only_the_prompt_is_timed(is_stream: bool) -> None:
    """A list of 1,000 prompts: most of them wait in the engine, and some end early."""
    speed, ledger = SpeedEstimator(), Ledger()
    lease = ledger.lease(D0, 100, 100)
    leg = LegTimer(speed.counts, lease, 100, 0.0, tracks_first_token=is_stream, sequences=1000)
    if is_stream:
        leg.first_token(1.0)
        assert ledger.load(D0).pending == 0
    else:
        leg.unary_answer(1.0, 100_000)
    assert (speed.counts.open, speed.counts.streams) == (0, 0)
    speed.tick(2.0)
    assert (speed.per_token, speed.per_prompt_token) == (None, None)
