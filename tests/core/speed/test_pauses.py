"""Pauses: an engine stops for a moment and continues, or its steps are long."""

import pytest

from router.core.speed.speed_buckets import Pauses
from router.core.speed.tuning import HIDDEN_TICKS, TICK_SECONDS

GAP = 0.02
STREAMS = 8


def ticks(pauses: Pauses, pattern: str, *, streams: int = STREAMS, gap: float = GAP) -> Pauses:
    """A tick for each letter: T has tokens, S has none, I has no stream."""
    for letter in pattern:
        open_ = 0.0 if letter == "I" else streams * TICK_SECONDS
        tokens = open_ / GAP if letter == "T" else 0.0
        pauses.tick(tokens, open_, TICK_SECONDS, gap, 1.0)
    return pauses


@pytest.mark.parametrize(
    ("pattern", "hides"),
    [
        ("", False),
        ("TT", False),
        ("TTS", True),
        ("TT" + HIDDEN_TICKS * "S", True),
        ("TTS" + HIDDEN_TICKS * "S", False),  # its duration is unknown
        ("TTSST", True),  # a part of this tick belongs to the pause
        ("TTSSTT", False),
        ("TTSSTS", False),  # its steps are long
        ("TTSSTSST", False),
        ("TS", False),
        ("IS", False),
        ("TTI", False),
        ("TTSIS", True),
    ],
)
def test_silence_of_a_steady_engine_hides_its_speed(pattern: str, hides: bool) -> None:
    assert ticks(Pauses(), pattern).hides_speed is hides


@pytest.mark.parametrize(
    ("pattern", "since"),
    [
        ("TTT", None),
        ("TTSST", None),
        ("TTSSTT", 1),
        ("TTSSTTTT", 3),
        ("TT" + 3 * HIDDEN_TICKS * "S" + "TT", 1),
        ("TTSTTTSSTT", 1),
        ("TTSSTSTT", None),
    ],
)
def test_it_goes_on_when_tokens_come_in_two_ticks_in_a_row(pattern: str, since: int | None) -> None:
    assert ticks(Pauses(), pattern).since == since


def test_a_silence_of_a_few_gaps_is_no_pause() -> None:
    assert ticks(Pauses(), "TTSTT", gap=TICK_SECONDS).since is None


def test_a_silence_in_which_few_events_were_due_is_no_pause() -> None:
    assert ticks(Pauses(), "TTSTT", streams=1, gap=0.05).since is None
    assert ticks(Pauses(), "TTSTT", streams=2, gap=0.05).since == 1


def test_nothing_is_a_pause_while_no_gap_is_known() -> None:
    assert not ticks(Pauses(), "TTSS", gap=0.0).hides_speed
