"""Prompts that an engine computes beside streams do not make it look slow, whoever sent them."""

from collections.abc import Callable

import pytest

from router.core.fleet.ledger import Ledger
from router.core.fleet.leg_timer import LegTimer
from router.core.replicas import PeerBoard, PeerReport
from router.core.speed.speed_estimator import SpeedEstimator
from router.core.speed.tuning import TICK_SECONDS
from tests.core.fixtures import D0
from tests.core.speed.test_speed_estimator import open_leg
from tests.core.test_shared_table import table

STEP, PER_PROMPT_TOKEN = 0.02, 0.000125
SHARE = PER_PROMPT_TOKEN / STEP
START = 1.0
"""Not 0, which in shared memory stands for never."""

Finish = Callable[[float], None]
"""A prompt is computed, at this time."""


class Sender:
    """The router itself sends the prompts."""

    def __init__(self) -> None:
        self.speed = SpeedEstimator()
        """The router's, whose streams run."""

    def send(self, prompt: int, now: float) -> Finish:
        """Send a prompt of so many tokens."""
        return self._leg(self.speed, prompt, now)

    def tick(self, now: float) -> None:
        """A tick of all processes."""
        self.speed.counts.sync(now)
        self.speed.tick(now)

    def _leg(self, speed: SpeedEstimator, prompt: int, now: float) -> Finish:
        leg = LegTimer(speed.counts, Ledger().lease(D0, prompt, prompt), prompt, now, True)

        def finish(then: float) -> None:
            leg.first_token(then)
            leg.end(then)

        return finish


class Process(Sender):
    """Another process of the router sends them."""

    def __init__(self) -> None:
        shared = table(2)
        self.speed, self._other = (
            SpeedEstimator(shared.column(number).speed(D0)) for number in range(2)
        )

    def send(self, prompt: int, now: float) -> Finish:
        return self._leg(self._other, prompt, now)

    def tick(self, now: float) -> None:
        self._other.counts.sync(now)
        super().tick(now)
        self._other.tick(now)


class Sibling(Sender):
    """A sibling replica sends them, and reports it."""

    def __init__(self) -> None:
        super().__init__()
        self._board = PeerBoard("me")
        self.speed.counts.siblings = self._board.siblings_on(D0)
        self._reports = 0

    def send(self, prompt: int, now: float) -> Finish:
        self._report(prompt, now)
        return lambda then: self._report(0, then)

    def _report(self, pending: int, now: float) -> None:
        self._reports += 1
        self._board.receive(PeerReport("sibling", self._reports, {D0: (1, pending)}), now)


def beside_prompts(
    sender: Sender, prompt: int, *, pause: float = 0.0, seconds: float = 8.0
) -> list[float]:
    """Four streams, and one prompt after the other of so many tokens, with pauses, computed in
    steps of 2,048 at most; seconds per token at each tick, the first two seconds left out."""
    speed = sender.speed
    speed.prompt_share, speed.counts.prompt_seconds = SHARE, PER_PROMPT_TOKEN
    for _ in range(4):
        open_leg(speed, START)
    now, ticked, again, left = START, START, START, 0
    measured: list[float] = []
    finish: Finish | None = None
    while now < START + seconds:
        if finish is None and now >= again:
            finish, left = sender.send(prompt, now), prompt
        part = min(left, 2048)
        now += STEP + part * PER_PROMPT_TOKEN
        left -= part
        while ticked + TICK_SECONDS < now:
            ticked += TICK_SECONDS
            sender.tick(ticked)
            if ticked > START + 2.0 and speed.per_token is not None:
                measured.append(speed.per_token)
        speed.counts.counter.tokens += 4
        if finish is not None and not left:
            finish(now)
            finish, again = None, now + pause
    return measured


@pytest.mark.parametrize("prompt", [300, 1500, 16_000])
@pytest.mark.parametrize("pause", [0.0, 0.3, 3.0])
@pytest.mark.parametrize("sender", [Sender, Process, Sibling])
def test_an_engine_is_not_slow_while_it_computes_prompts(
    sender: type[Sender], prompt: int, pause: float
) -> None:
    for per_token in beside_prompts(sender(), prompt, pause=pause):
        assert 0.6 * STEP < per_token < 1.7 * STEP


def test_an_aborted_prompt_counts_with_its_computed_tokens() -> None:
    speed = SpeedEstimator()
    speed.counts.prompt_seconds = PER_PROMPT_TOKEN
    open_leg(speed)
    leg = LegTimer(
        speed.counts, Ledger().lease(D0, 16_000, 16_000), 16_000, 0.0, tracks_first_token=True
    )
    speed.tick(0.25)
    assert speed.counts.counted.computed == pytest.approx(2000.0)
    leg.end(0.3)
    speed.tick(0.5)
    assert speed.counts.counted.computed == pytest.approx(2000.0)
