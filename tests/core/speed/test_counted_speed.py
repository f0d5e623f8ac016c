"""An engine's own counter: it measures speed only where events cannot."""

import pytest

from router.core.fleet.leg_timer import LegTimer
from router.core.speed.counted_speed import CountedSpeed
from router.core.speed.speed_estimator import SpeedEstimator
from router.core.speed.tuning import AGREED_SCRAPES, FRESH_WINDOWS
from router.core.values import Gauges

GAP = 0.02


class Engine:
    """It generates for streams of which some show their tokens as they come."""

    def __init__(self, shown: int, held: int = 0, whole: int = 0) -> None:
        self.counted, self.speed = CountedSpeed(), SpeedEstimator()
        self.shown, self.held, self.whole = shown, held, whole
        self.now = self.generated = 0.0
        for _ in range(shown + held):
            LegTimer(self.speed.counts, None, 1, 0.0, tracks_first_token=True).first_token(0.0)
        self.speed.tick(0.0)
        self.scrape()

    def scrape(self) -> bool:
        """Read its gauges."""
        running = self.shown + self.held + self.whole
        gauges = Gauges(running=running, generated=int(self.generated))
        return self.counted.observe(gauges, self.speed.counts, running, self.now)

    def run(self, scrapes: int, gap: float = GAP) -> bool:
        """A second for each scrape; returns the last result."""
        is_alive = False
        for _ in range(scrapes):
            self.now += 1.0
            self.speed.counts.counter.tokens += round(self.shown / gap)
            self.generated += (self.shown + self.held + self.whole) / gap
            is_alive = self.scrape()
        return is_alive

    @property
    def per_token(self) -> float | None:
        """Its current value."""
        return self.counted.per_token(self.now)


@pytest.mark.parametrize(("shown", "held", "whole"), [(1, 3, 0), (0, 4, 0), (0, 0, 4), (1, 0, 9)])
def test_tokens_that_are_held_back_count(shown: int, held: int, whole: int) -> None:
    """In streams after their first token, in streams before it, and in unary answers."""
    engine = Engine(shown, held, whole)
    engine.run(3)
    assert engine.per_token == pytest.approx(GAP)
    engine.run(3, gap=8 * GAP)
    assert engine.per_token == pytest.approx(8 * GAP, rel=0.5)


@pytest.mark.parametrize("whole", [0, 2])
def test_unbuffered_events_measure_the_speed(whole: int) -> None:
    engine = Engine(4, whole=whole)
    engine.run(5)
    assert engine.per_token is None
    engine.run(1, gap=8 * GAP)  # sooner than any counter
    assert engine.per_token is None


def burst(engine: Engine, second: float) -> None:
    """Four streams, with a scrape while their prompts are computed and one after their end."""
    legs = [
        LegTimer(engine.speed.counts, None, 1, second, tracks_first_token=True) for _ in range(4)
    ]
    gauges = Gauges(running=4, generated=int(engine.generated))
    engine.counted.observe(gauges, engine.speed.counts, 4, second + 0.1)
    for leg in legs:
        leg.first_token(second + 0.2)
        engine.speed.counts.counter.tokens += 49
        leg.end(second + 0.9)
    engine.generated += 200
    gauges = Gauges(running=0, generated=int(engine.generated))
    engine.counted.observe(gauges, engine.speed.counts, 0, second + 1.0)


def test_events_measure_streams_that_no_scrape_saw() -> None:
    engine = Engine(0)
    for second in (0.0, 2.0, 4.0):
        burst(engine, second)
        assert engine.counted.agrees
        assert engine.counted.per_token(second + 1.0) is None


def test_such_streams_make_events_believed_again() -> None:
    engine = Engine(0, whole=4)
    engine.run(3)
    for number in range(AGREED_SCRAPES):
        assert not engine.counted.agrees
        burst(engine, engine.now + 1.0 + 2.0 * number)
    assert engine.counted.agrees


def test_streams_whose_prompts_are_being_computed_hide_nothing() -> None:
    engine = Engine(0)
    for _ in range(4):
        LegTimer(engine.speed.counts, None, 1, 0.0, tracks_first_token=True)
    for second in (1.0, 2.0, 3.0, 4.0):
        engine.counted.observe(Gauges(running=4, generated=0), engine.speed.counts, 4, second)
    assert engine.counted.agrees
    assert engine.counted.per_token(4.0, usual=GAP) is None


def test_an_engine_that_never_generates_is_judged_by_its_unary_requests() -> None:
    engine = Engine(0, whole=4)
    engine.run(4, gap=1e9)
    seconds = engine.counted.per_token(engine.now, usual=GAP)
    assert seconds is not None
    assert seconds > 2.0


def test_events_are_believed_again_when_they_have_agreed_for_a_while() -> None:
    engine = Engine(1, held=3)
    engine.run(3)
    engine.shown, engine.held = 4, 0
    engine.run(AGREED_SCRAPES)
    assert engine.per_token is not None
    engine.run(4)
    assert engine.per_token is None


def test_an_engine_that_holds_tokens_back_is_alive() -> None:
    assert Engine(1, held=3).run(1)
    assert not Engine(4).run(1)


def test_a_speed_that_is_old_does_not_count() -> None:
    engine = Engine(0, held=4)
    engine.run(3)
    engine.now += FRESH_WINDOWS
    assert engine.per_token is not None
    engine.now += 0.1
    assert engine.per_token is None


def test_short_answers_measure_the_speed_of_prompts() -> None:
    engine = Engine(0, held=4)
    for _ in range(3):
        engine.speed.counts.untracked += 100
        engine.run(1)
    assert engine.per_token is None


@pytest.mark.parametrize(
    "gauges",
    [None, Gauges(running=4), Gauges(running=4, generated=0)],
    ids=["unread", "no-counter", "restarted"],
)
def test_without_a_growing_counter_there_is_no_message(gauges: Gauges | None) -> None:
    engine = Engine(0, held=4)
    engine.run(3)
    assert not engine.counted.observe(gauges, engine.speed.counts, 4, engine.now + 1.0)
    assert engine.per_token is None
    engine.counted.observe(Gauges(running=4, generated=9), engine.speed.counts, 4, engine.now + 2.0)
    assert engine.per_token is None


def test_an_engine_without_seen_running_requests_is_no_evidence() -> None:
    engine = Engine(0, held=4)
    for second, generated in ((1.0, 100), (2.0, 200)):
        gauges = Gauges(running=0, generated=generated)
        engine.counted.observe(gauges, engine.speed.counts, 4, second)
        engine.counted._sequence_seconds = 0.0
    assert engine.counted.per_token(2.0) is None


def test_an_engine_that_generates_few_tokens_is_judged_by_those_that_others_would_have() -> None:
    engine = Engine(0, held=4)
    engine.run(3)
    engine.run(8, gap=1.0)
    assert engine.per_token is None
    assert engine.counted.per_token(engine.now, usual=GAP) == pytest.approx(1.0, rel=0.3)
    engine.run(6, gap=1000.0)
    seconds = engine.counted.per_token(engine.now, usual=GAP)
    assert seconds is not None
    assert seconds > 2.0
    assert engine.counted.per_token(engine.now, usual=1.0) is None


def test_the_time_of_prompts_does_not_count() -> None:
    engine = Engine(0, held=4)
    for _ in range(6):
        engine.speed.counts.computed += 4000
        engine.run(1, gap=2 * GAP)
    share = 1 / (2 * GAP) / 4000  # as much as the tokens of one sequence
    assert engine.per_token == pytest.approx(2 * GAP)
    assert engine.counted.per_token(engine.now, share) == pytest.approx(GAP)
