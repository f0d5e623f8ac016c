"""Legs: what an attempt tells of an engine's speed; each is counted once, however it ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from router.core.ledger import Ledger
from router.core.leg import WHOLE_TOKENS, Leg
from router.core.pace import PROMPT_OVERHEAD, Pace
from tests.core.cast import D0
from tests.core.test_pace import open_leg, run


@pytest.mark.parametrize(
    ("tokens", "work", "is_measured"),
    [(WHOLE_TOKENS, 10, True), (WHOLE_TOKENS - 1, 10, False), (WHOLE_TOKENS, 0, False)],
)
def test_an_answer_that_is_no_stream_counts_when_it_is_long_and_computed_there(
    tokens: int, work: int, is_measured: bool
) -> None:
    pace = Pace()
    leg = Leg(pace, None, work, 0.0, is_heard=False)
    leg.whole(3.2, tokens)
    leg.end(3.2)
    pace.tick(3.25)
    assert (pace.per_token == pytest.approx(0.1)) if is_measured else pace.per_token is None
    assert pace.open == 0


def test_a_prefill_is_heard_when_its_reply_is_whole() -> None:
    pace = Pace()
    ledger = Ledger()
    lease = ledger.lease(D0, 100, 100)
    leg = Leg(pace, lease, lease.pending_there, 1.0, is_heard=True)
    assert (pace.open, ledger.load(D0).pending) == (1, 100)
    leg.whole(2.0)
    assert (pace.heard_at, ledger.load(D0).pending) == (2.0, 0)
    leg.end(2.0)
    leg.end(2.0)
    pace.tick(2.25)
    assert pace.open == 0
    assert pace.per_prompt_token == pytest.approx(1 / (100 + PROMPT_OVERHEAD))


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=20))
def test_a_leg_that_ends_before_or_after_its_first_token_leaves_nothing(
    legs: list[tuple[bool, bool]],
) -> None:
    pace = Pace()
    for is_heard, begins in legs:
        leg = Leg(pace, None, 1, 0.0, is_heard=is_heard)
        if begins:
            leg.first(1.0)
        leg.end(2.0)
        leg.end(2.0)
    assert (pace.open, pace.streams) == (0, 0)


def test_a_stream_that_is_paused_counts_neither_as_open_nor_as_a_stream() -> None:
    pace = Pace()
    leg, other = open_leg(pace), open_leg(pace)
    now = run(pace, 2.0, gap=0.05)
    leg.pause(now)
    leg.pause(now)
    assert (pace.open, pace.streams) == (1, 1)
    now = run(pace, 8.0, gap=0.05, at=now)
    assert pace.per_token == pytest.approx(0.05, rel=0.05)
    leg.resume(now)
    leg.resume(now)
    assert (pace.open, pace.streams) == (2, 2)
    run(pace, 4.0, gap=0.05, at=now)
    assert pace.per_token == pytest.approx(0.05, rel=0.05)
    leg.end(now)
    other.end(now)
    assert (pace.open, pace.streams) == (0, 0)


def test_a_pause_is_no_silence_and_its_end_no_sign_of_life() -> None:
    pace = Pace()
    leg, other = open_leg(pace), open_leg(pace)
    leg.pause(1.0)
    other.pause(1.0)
    pace.tick(9.0)
    assert pace.per_token is None or pace.per_token <= 1.0
    other.end(9.0)
    leg.resume(9.0)
    assert [pace.begun, pace.heard_at] == [0, 0.0]
    open_leg(pace, 9.0)
    leg.pause(10.0)
    leg.resume(11.0)
    assert [pace.begun, pace.heard_at] == [1, 9.0]


def test_a_leg_that_is_resumed_before_its_first_token_waits_behind_those_that_wait() -> None:
    pace = Pace()
    leg = Leg(pace, None, 1000, 1.0, is_heard=True)
    Leg(pace, None, 10, 2.0, is_heard=True)
    leg.pause(3.0)
    leg.resume(4.0)
    assert list(pace.oldest_waiting or ()) == [2.0, 10]
    assert [leg.started, leg.work] == [4.0, 0]
    leg.pause(5.0)
    leg.first(6.0)
    leg.resume(7.0)
    assert list(pace.oldest_waiting or ()) == [2.0, 10]  # it has begun: it waits no more


def test_a_leg_that_is_paused_before_its_first_token_measures_no_prompt() -> None:
    pace, ledger = Pace(), Ledger()
    lease = ledger.lease(D0, 100, 100)
    leg = Leg(pace, lease, lease.pending_there, 0.0, is_heard=True)
    leg.pause(1.0)
    assert (pace.open, pace.streams) == (0, 0)
    leg.first(60.0)
    assert (pace.open, pace.streams, ledger.load(D0).pending) == (0, 0, 0)
    leg.resume(61.0)
    assert (pace.open, pace.streams) == (1, 1)
    pace.tick(61.25)
    assert pace.per_prompt_token is None
    leg.end(62.0)
    assert (pace.open, pace.streams) == (0, 0)


@pytest.mark.parametrize("is_heard", [True, False])
def test_a_leg_that_ends_while_it_is_paused_is_counted_out_once(is_heard: bool) -> None:
    pace = Pace()
    leg = Leg(pace, None, 1, 0.0, is_heard=is_heard)
    leg.first(1.0)
    leg.pause(2.0)
    leg.end(3.0)
    leg.resume(4.0)
    leg.pause(5.0)
    leg.end(6.0)
    assert (pace.open, pace.streams) == (0, 0)


class Legs(RuleBasedStateMachine):
    """Legs begin, speak and end in any order while time passes."""

    def __init__(self) -> None:
        super().__init__()
        self.pace = Pace()
        self.legs: list[Leg] = []
        self.now = 0.0

    @rule(is_heard=st.booleans())
    def ask(self, is_heard: bool) -> None:
        self.legs.append(Leg(self.pace, None, 5, self.now, is_heard=is_heard))

    @rule(place=st.integers(0, 9))
    def speak(self, place: int) -> None:
        if place < len(self.legs):
            self.legs.pop(place).end(self.now)

    @rule(place=st.integers(0, 9), tokens=st.integers(0, 100))
    def begin(self, place: int, tokens: int) -> None:
        if place < len(self.legs):
            leg = self.legs.pop(place)
            leg.first(self.now)
            self.pace.tokens += tokens
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
        self.pace.tick(self.now)

    @invariant()
    def nothing_is_negative(self) -> None:
        assert self.pace.open >= self.pace.streams >= 0
        assert self.pace.per_token is None or self.pace.per_token >= 0


TestLegs = Legs.TestCase


def test_several_answers_to_one_request_are_as_many_sequences() -> None:
    """n=4: four tokens come in a step, and none of the four is faster for it."""
    pace = Pace()
    leg = Leg(pace, None, 10, 0.0, is_heard=True, sequences=4)
    leg.first(0.0)
    assert (pace.open, pace.streams) == (4, 4)
    run(pace, 4.0, gap=0.05)
    assert pace.per_token == pytest.approx(0.05, rel=0.05)
    leg.end(4.0)
    assert (pace.open, pace.streams) == (0, 0)
