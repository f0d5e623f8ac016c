"""A scenario of tests/e2e/judgement that fails on a machine that is too slow proves nothing."""

import asyncio

import pytest

from tests.e2e.judgement.stage import ATTEMPTS, LATE_S, Lateness, play_again_if_late


class Play:
    """A scenario that fails so often, while the loop is late by so much."""

    def __init__(self, *, lateness: float, fails: int) -> None:
        self.times = 0
        self._lateness = lateness
        self._fails = fails

    def run(self) -> int:
        """How often it is played."""
        asyncio.run(play_again_if_late(self._play, self._late))
        return self.times

    async def _play(self) -> None:
        self.times += 1
        assert self.times > self._fails, "a claim"

    def _late(self) -> Lateness:
        made = Lateness()
        made.most = self._lateness
        return made


def test_a_scenario_that_fails_on_a_machine_that_is_fast_enough_has_failed() -> None:
    play = Play(lateness=LATE_S / 2, fails=1)
    with pytest.raises(AssertionError, match="a claim"):
        play.run()
    assert play.times == 1


def test_a_scenario_that_fails_while_the_machine_is_too_slow_is_played_again() -> None:
    assert Play(lateness=LATE_S, fails=ATTEMPTS - 1).run() == ATTEMPTS


def test_a_scenario_that_has_no_machine_that_is_fast_enough_is_skipped() -> None:
    with pytest.raises(pytest.skip.Exception, match="too slow"):
        Play(lateness=LATE_S, fails=ATTEMPTS).run()


def test_a_scenario_that_succeeds_does_so_on_any_machine() -> None:
    assert Play(lateness=9.0, fails=0).run() == 1
