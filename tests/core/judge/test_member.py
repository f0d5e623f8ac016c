"""A member's exclusion: the gravest reason wins."""

import pytest

from router.core.candidate import Candidate
from router.core.fleet.leg_timer import LegTimer
from router.core.judge.member import Member
from router.core.judge.outlier import HEALTHY, Outlier
from router.core.judge.verdict import CLEAR, Exclusion, Stall, Verdict
from router.core.values import Gauges
from tests.core.fixtures import D0


@pytest.mark.parametrize("ejected", [False, True])
@pytest.mark.parametrize("stalled", [False, True])
@pytest.mark.parametrize("slow", [False, True])
def test_the_gravest_reason_is_reported(ejected: bool, stalled: bool, slow: bool) -> None:
    member = Member(
        Candidate(D0, 3),
        outlier=Outlier(until=9.0) if ejected else HEALTHY,
        verdict=Verdict(Stall(1.0) if stalled else CLEAR, 1.0 if slow else None),
    )
    reasons = [(ejected, Exclusion.EJECTED), (stalled, Exclusion.STALLED), (slow, Exclusion.SLOW)]
    assert member.exclusion == next((reason for holds, reason in reasons if holds), None)
    assert member.is_ejected_or_stalled == (ejected or stalled)
    assert (member.endpoint, member.ordinal, member.other_requests) == (D0, 3, None)


# What an event is worth, by the engine's counter of generated tokens.


def scraped(member: Member, generated: int | None, others: int = 0) -> float:
    """Tokens per event after a scrape with this counter."""
    counts, in_flight = member.speed.counts, member.view.load.requests
    counted = member.scrapes.counted_speed
    gauges = Gauges(generated=generated)
    counted.calibrate(gauges, counts, others=others, in_flight=in_flight)
    return member.speed.counts.calibration.tokens_per_event


def stream(member: Member, events: int) -> None:
    """A stream of this router begins and has so many events more."""
    LegTimer(member.speed.counts, None, 10, 0.0, tracks_first_token=True).first_token(0.0)
    member.speed.counts.counter.tokens += events


def test_the_engines_counter_reveals_tokens_per_event() -> None:
    member = Member(Candidate(D0, 0))
    assert scraped(member, 5000) == 1.0
    stream(member, 200)
    assert scraped(member, 5000 + 1 + 8 * 200) == 8.0


def test_few_events_between_two_scrapes_are_no_evidence() -> None:
    """The counter is some steps ahead of the received tokens."""
    member = Member(Candidate(D0, 0))
    scraped(member, 0)
    stream(member, 199)
    assert scraped(member, 1600) == 1.0


def test_few_events_add_up_over_several_scrapes() -> None:
    """An engine with few streams would never learn, and look as many times too slow."""
    member = Member(Candidate(D0, 0))
    scraped(member, 0)
    stream(member, 70)
    assert scraped(member, 1 + 3 * 70) == 1.0
    member.speed.counts.counter.tokens += 70
    assert scraped(member, 1 + 3 * 140) == 1.0
    member.speed.counts.counter.tokens += 70
    assert scraped(member, 1 + 3 * 210) == 3.0


def test_tokens_of_probes_are_no_tokens_of_events() -> None:
    """A slow engine is probed for a minute; then a user's stream comes."""
    member = Member(Candidate(D0, 0))
    scraped(member, 0)
    generated = 0
    for _ in range(60):
        probe = LegTimer(member.speed.counts, None, 3, 0.0, tracks_first_token=True)
        probe.first_token(0.0)
        probe.end(0.0)
        member.speed.counts.on_probe_tokens(7)
        generated += 8
        assert scraped(member, generated) == 1.0
    stream(member, 200)
    assert scraped(member, generated + 1 + 200) == 1.0


def test_a_tick_between_two_scrapes_loses_no_event() -> None:
    member = Member(Candidate(D0, 0))
    scraped(member, 0)
    stream(member, 150)
    member.speed.tick(0.25)
    member.speed.counts.counter.tokens += 50
    assert scraped(member, 1 + 4 * 200) == 4.0


@pytest.mark.parametrize("others", [(1, 0), (0, 1)])
def test_other_clients_prompts_are_no_evidence(others: tuple[int, int]) -> None:
    member = Member(Candidate(D0, 0))
    scraped(member, 0, others[0])
    stream(member, 200)
    assert scraped(member, 1600, others[1]) == 1.0


def test_open_unary_requests_make_the_counter_unusable() -> None:
    """A unary answer that began long ago, or a stream whose client does not read."""
    member = Member(Candidate(D0, 0))
    member.view.load.add(2, 0, 0)
    scraped(member, 0)
    stream(member, 200)
    assert scraped(member, 1600) == 1.0


def test_unary_answers_make_the_counter_unusable() -> None:
    member = Member(Candidate(D0, 0))
    scraped(member, 0)
    stream(member, 200)
    LegTimer(member.speed.counts, None, 10, 0.0, tracks_first_token=False)
    assert scraped(member, 1600) == 1.0


@pytest.mark.parametrize("generated", [None, 0])
def test_a_missing_or_reset_counter_is_ignored(generated: int | None) -> None:
    member = Member(Candidate(D0, 0))
    scraped(member, 5000)
    stream(member, 200)
    assert scraped(member, generated) == 1.0


@pytest.mark.parametrize(
    ("last_token", "stalled_since", "expected"),
    [
        (5.0, None, 11.0),  # nothing has come since the first scrape: tokens are held back
        (10.5, None, 10.5),  # the counter may have grown before the last token came
        (5.0, 7.0, 11.0),
        (5.0, 10.5, 5.0),  # and before the stall was found
    ],
)
def test_a_counter_that_grows_during_a_silence_is_a_sign_of_life(
    last_token: float, stalled_since: float | None, expected: float
) -> None:
    member = Member(Candidate(D0, 0), verdict=Verdict(Stall(stalled_since)))
    member.speed.counts.last_token_at = last_token
    for now, generated in ((10.0, 5), (11.0, 6)):
        member.observe_gauges(Gauges(running=1, generated=generated), 1, now, has_transfers=False)
    assert member.speed.counts.last_token_at == expected


def test_prefill_and_decode_share_steps() -> None:
    member = Member(Candidate(D0, 0))
    leg = LegTimer(member.speed.counts, None, 10, 0.5, tracks_first_token=True)
    for now, waiting, generated, is_held in (
        (1.0, 0, 5, False),
        (2.0, 1, 9, False),
        (3.0, 0, 9, False),
        (4.0, 0, 12, True),
    ):
        gauges = Gauges(running=2, waiting=waiting, generated=generated)
        member.observe_gauges(gauges, 1, now, has_transfers=False)
        assert leg.is_held == is_held


def test_tokens_that_are_held_back_since_the_last_scrape_are_a_sign_of_life() -> None:
    """The last event came just after it."""
    member = Member(Candidate(D0, 0))
    LegTimer(member.speed.counts, None, 10, 0.0, tracks_first_token=True).first_token(10.1)
    for now, generated in ((10.0, 0), (11.0, 50)):
        member.observe_gauges(Gauges(running=1, generated=generated), 1, now, has_transfers=False)
    assert member.speed.counts.last_token_at == 11.0
