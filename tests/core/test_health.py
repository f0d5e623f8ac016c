"""Is an engine there? The state after a sequence of signals."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from router.core.health import Health, HealthSignal, HealthThresholds, State, after

OK, UNAVAILABLE, FAILED = HealthSignal.OK, HealthSignal.UNAVAILABLE, HealthSignal.FAILED
TIMED_OUT, BUSY = HealthSignal.TIMED_OUT, HealthSignal.BUSY
STARTING, UP, DRAINING, DOWN = State.STARTING, State.UP, State.DRAINING, State.DOWN
ASLEEP, SLEEPING = HealthSignal.ASLEEP, State.SLEEPING


def health_after(*signals: HealthSignal, rules: HealthThresholds | None = None) -> Health:
    """The health after these signals of a new engine, of probes sent at 0 s, 1 s and so on."""
    health = Health()
    for second, signal in enumerate(signals):
        health = after(health, signal, rules or HealthThresholds(), float(second))
    return health


def seen(*signals: HealthSignal, rules: HealthThresholds | None = None) -> State:
    """The state after these signals of a new engine."""
    return health_after(*signals, rules=rules).state


@pytest.mark.parametrize(
    ("signals", "state"),
    [
        ([], STARTING),
        ([FAILED] * 9, STARTING),
        ([UNAVAILABLE], STARTING),
        ([OK], UP),
        ([FAILED, OK], UP),
        ([OK, FAILED, FAILED], UP),
        ([OK, FAILED, FAILED, FAILED], DOWN),
        ([OK, FAILED, FAILED, OK, FAILED, FAILED], UP),
        ([OK, UNAVAILABLE], DRAINING),
        ([OK, FAILED, UNAVAILABLE], DRAINING),
        ([OK, UNAVAILABLE, OK], UP),
        ([OK, UNAVAILABLE, FAILED, FAILED], DRAINING),
        ([OK, UNAVAILABLE, FAILED, FAILED, FAILED], DOWN),
        ([OK, UNAVAILABLE, FAILED, UNAVAILABLE, FAILED, FAILED], DRAINING),
        ([OK, FAILED, FAILED, FAILED, UNAVAILABLE], DOWN),
        ([OK, FAILED, FAILED, FAILED, OK], UP),
        ([TIMED_OUT] * 9, STARTING),
        ([OK, TIMED_OUT, FAILED, TIMED_OUT], DOWN),
        ([OK, TIMED_OUT, TIMED_OUT, BUSY, TIMED_OUT, TIMED_OUT], UP),
        ([OK, TIMED_OUT, TIMED_OUT, TIMED_OUT, BUSY], UP),
        ([OK, TIMED_OUT, TIMED_OUT, FAILED, BUSY], DOWN),
        ([OK, FAILED, FAILED, FAILED, BUSY], DOWN),
        ([OK, UNAVAILABLE, BUSY], DRAINING),
        ([ASLEEP], SLEEPING),
        ([OK, ASLEEP, OK], UP),
        ([OK, ASLEEP, BUSY], SLEEPING),
        ([OK, ASLEEP, FAILED, FAILED], SLEEPING),
        ([OK, ASLEEP, FAILED, FAILED, FAILED], DOWN),
        ([OK, UNAVAILABLE, ASLEEP], SLEEPING),
        ([BUSY], UP),  # another process of the router relays its tokens
    ],
)
def test_signals_lead_to_a_state(signals: list[HealthSignal], state: State) -> None:
    assert seen(*signals) is state


@pytest.mark.parametrize("state", State)
def test_only_an_engine_that_is_up_takes_requests(state: State) -> None:
    assert Health(state).is_up == (state is UP)


@pytest.mark.parametrize(
    ("signals", "is_silent"),
    [
        ([OK, *[TIMED_OUT] * 3], True),
        ([OK, *[TIMED_OUT] * 9], True),
        ([OK, *[TIMED_OUT] * 2], False),
        ([TIMED_OUT] * 3, False),
        ([OK, FAILED, TIMED_OUT, TIMED_OUT], False),
        ([OK, TIMED_OUT, TIMED_OUT, FAILED], False),
        ([OK, UNAVAILABLE, *[TIMED_OUT] * 3], False),
        ([OK, *[TIMED_OUT] * 3, FAILED], False),
        ([OK, *[TIMED_OUT] * 3, FAILED, TIMED_OUT], False),
        ([OK, *[TIMED_OUT] * 3, OK], False),
    ],
)
def test_silent_engine_may_serve_in_a_panic(signals: list[HealthSignal], is_silent: bool) -> None:
    health = health_after(*signals)
    assert health.is_silent == is_silent
    assert health.may_serve == (is_silent or health.state is UP)


def test_silence_begins_with_the_first_probe_that_was_not_answered() -> None:
    assert health_after(OK, OK, TIMED_OUT, TIMED_OUT, TIMED_OUT, TIMED_OUT).unanswered_since == 2.0
    assert health_after(OK, TIMED_OUT, BUSY, TIMED_OUT).unanswered_since == 3.0
    assert health_after(FAILED, TIMED_OUT, TIMED_OUT).unanswered_since == 1.0
    assert health_after(OK, FAILED, TIMED_OUT).unanswered_since is None


@pytest.mark.parametrize(("state", "signal"), list(product(State, HealthSignal)))
def test_every_state_has_an_answer_to_every_sight(state: State, signal: HealthSignal) -> None:
    assert after(Health(state), signal, HealthThresholds(1, 1)).state in State


def test_coming_up_can_take_several_good_signals_in_a_row() -> None:
    rules = HealthThresholds(down_after=1, up_after=2)
    assert seen(OK, rules=rules) is STARTING
    assert seen(OK, FAILED, OK, rules=rules) is STARTING
    assert seen(OK, OK, rules=rules) is UP


def test_a_bad_sight_of_a_draining_engine_does_not_help_it_up() -> None:
    rules = HealthThresholds(down_after=3, up_after=2)
    assert seen(OK, OK, UNAVAILABLE, FAILED, OK, rules=rules) is DRAINING
    assert seen(OK, OK, UNAVAILABLE, FAILED, OK, OK, rules=rules) is UP


def test_a_sight_that_agrees_with_the_state_clears_the_doubts() -> None:
    assert after(Health(UP, 2, DOWN), OK, HealthThresholds(down_after=3, up_after=2)) == Health(UP)


class Watch(RuleBasedStateMachine):
    """Any sequence of signals under any thresholds; the expectation is read off the sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = HealthThresholds()
        self.health = Health()
        self.before = Health()
        self.signals: list[HealthSignal] = []

    @initialize(down_after=st.integers(1, 4), up_after=st.integers(1, 4))
    def choose(self, down_after: int, up_after: int) -> None:
        """Choose the rules."""
        self.limits = HealthThresholds(down_after, up_after)

    @rule(signal=st.sampled_from(HealthSignal))
    def see(self, signal: HealthSignal) -> None:
        """See something."""
        self.signals.append(signal)
        self.before, self.health = self.health, after(self.health, signal, self.limits)

    def ends_with(self, kinds: tuple[HealthSignal, ...], times: int) -> bool:
        """Whether the last signals were all of these kinds."""
        last = self.signals[-times:]
        return len(last) == times and all(signal in kinds for signal in last)

    @invariant()
    def enough_failures_bring_it_down(self) -> None:
        """An engine that failed often enough in a row is not used."""
        if self.ends_with((FAILED, TIMED_OUT), self.limits.down_after):
            assert self.health.state in (DOWN, STARTING)

    @invariant()
    def an_engine_that_did_not_only_time_out_is_not_silent(self) -> None:
        """A refusal counts until the engine is up again."""
        if self.health.is_silent:
            assert self.ends_with((TIMED_OUT,), self.limits.down_after)

    @invariant()
    def enough_good_signals_bring_it_up(self) -> None:
        """An engine that answered often enough in a row is used."""
        if self.ends_with((OK,), self.limits.up_after):
            assert self.health.state is UP

    @precondition(lambda self: self.before.state is not self.health.state)
    @invariant()
    def a_change_has_its_cause(self) -> None:
        """It takes exactly as many consecutive signals as the thresholds."""
        match self.health.state:
            case State.UP:
                is_back = self.before.is_silent and self.ends_with((BUSY,), 1)
                assert is_back or self.ends_with((OK, BUSY), self.limits.up_after)
            case State.DOWN:
                assert self.ends_with((FAILED, TIMED_OUT), self.limits.down_after)
            case State.DRAINING:
                assert self.ends_with((UNAVAILABLE,), 1)
                assert self.before.state in (UP, SLEEPING)
            case State.SLEEPING:
                assert self.ends_with((ASLEEP,), 1)
            case State.STARTING:
                raise AssertionError("an engine starts once")


TestAnySequenceOfSignals = Watch.TestCase


@given(
    st.lists(st.sampled_from(HealthSignal)),
    st.builds(HealthThresholds, st.integers(1, 4), st.integers(1, 4)),
)
def test_a_state_that_was_reached_owes_nothing_to_the_past(
    signals: list[HealthSignal], rules: HealthThresholds
) -> None:
    health = Health()
    for signal in signals:
        before, health = health, after(health, signal, rules)
        if before.state is not health.state:
            assert (health.streak, health.toward) == (0, None)
