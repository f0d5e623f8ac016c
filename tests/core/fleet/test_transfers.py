"""KV transfers between zones: what they cost in requests in flight, as measured."""

import pytest

from router.core.events import RequestEnded
from router.core.fleet.fleet import Fleet
from router.core.fleet.transfers import (
    MAX_PAIRS,
    MAX_REQUESTS,
    PRIOR_REQUESTS,
    REQUESTS_PER_SECOND,
    Transfers,
)
from router.core.membership.entry import Entry
from tests.core.fixtures import D0, P0
from tests.core.fleets import fleet_of

HOME, CROSSING = ("a", "a"), ("a", "b")
ENOUGH = 12


def transfers(crossing: float, home: float = 0.02, base: float = 0.02) -> Transfers:
    """Transfers of 1,000 to 8,000 tokens, at so many seconds per 1,000 tokens."""
    found = Transfers()
    for tokens in [1000, 2000, 4000, 8000] * 16:
        for zones, seconds in ((HOME, home), (CROSSING, crossing)):
            found.add(zones, tokens, base + seconds * tokens / 1000)
    return found


def test_a_constant_is_the_cost_until_both_pairs_have_been_measured() -> None:
    found = Transfers()
    assert found.requests(CROSSING, "a", 2000) == PRIOR_REQUESTS
    for _ in range(ENOUGH):
        found.add(CROSSING, 2000, 0.0)
    assert found.requests(CROSSING, "a", 2000) == PRIOR_REQUESTS
    for _ in range(ENOUGH):
        found.add(HOME, 2000, 0.0)
    assert found.requests(CROSSING, "a", 2000) == 0.0


@pytest.mark.parametrize("crossing", [0.0, 0.01, 0.02, 0.024])
def test_a_transfer_that_takes_no_longer_costs_nothing(crossing: float) -> None:
    assert transfers(crossing).requests(CROSSING, "a", 2000) == 0.0


def test_the_cost_grows_with_the_excess_and_with_the_prompt() -> None:
    near, far = transfers(0.04), transfers(0.08)
    excess = 0.02 + 2 * 0.08 - 1.25 * (0.02 + 2 * 0.02)
    assert far.requests(CROSSING, "a", 2000) == pytest.approx(REQUESTS_PER_SECOND * excess, rel=0.1)
    assert 0 < near.requests(CROSSING, "a", 2000) < far.requests(CROSSING, "a", 2000)
    assert near.requests(CROSSING, "a", 2000) < near.requests(CROSSING, "a", 6000)


def test_the_cost_is_bounded() -> None:
    assert transfers(100.0).requests(CROSSING, "a", 8000) == MAX_REQUESTS


def test_one_outlier_hardly_counts() -> None:
    found = transfers(0.02)
    found.add(CROSSING, 2000, 600.0)
    assert found.requests(CROSSING, "a", 2000) < PRIOR_REQUESTS


def test_a_link_that_has_become_fast_is_found_so() -> None:
    found = transfers(0.5)
    for _ in range(256):
        found.add(CROSSING, 2000, 0.02 + 0.04)
    assert found.requests(CROSSING, "a", 2000) == pytest.approx(0.0, abs=0.1)


def test_a_limited_number_of_pairs_is_measured() -> None:
    found = Transfers()
    for zone in range(MAX_PAIRS + 5):
        for _ in range(ENOUGH):
            found.add((str(zone), "a"), 2000, 1.0)
    assert len(found.lines()) == MAX_PAIRS


# What the fleet learns.


def zoned(**zones: str) -> Fleet:
    """A prefill and a decode engine."""
    fleet = fleet_of(P0, D0)
    enter(fleet, **zones)
    return fleet


def enter(fleet: Fleet, **zones: str) -> None:
    """The roster names these zones."""
    entries = (Entry(P0, 0, zone=zones.get("prefill")), Entry(D0, 1, zone=zones.get("decode")))
    fleet.apply(entries, 0.0)


def ended(**changes: object) -> RequestEnded:
    """A stream with a remote prefill, whose first content came half a second after that."""
    record = RequestEnded("id", "/v1/completions", 0.0)
    usual = {"stream": True, "tokens": 1000, "outcome": "ok", "prefill": P0, "decode": D0}
    times = {"prefilled_at": 2.0, "asked_at": 2.0, "first_byte": 2.5}
    for name, value in {**usual, **times, **changes}.items():
        setattr(record, name, value)
    return record


def test_a_request_shows_the_transfer_from_the_prefills_answer_to_the_first_content() -> None:
    fleet = zoned(prefill="a", decode="b")
    for _ in range(ENOUGH):
        fleet.ended(ended())
    assert fleet.transfers is not None
    [(zones, line)] = fleet.transfers.lines().items()
    assert zones == ("a", "b")
    assert line.seconds(1000) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "changes",
    [
        {"prefilled_at": None},
        {"first_byte": None},
        {"stream": False},
        {"outcome": "broken"},
        {"fallbacks": ("one",)},
        {"asked_at": 1.0},
        {"decode": P0._replace(url="http://gone")},
    ],
)
def test_requests_that_show_no_transfer_are_not_counted(changes: dict[str, object]) -> None:
    fleet = zoned(prefill="a", decode="b")
    for _ in range(ENOUGH):
        fleet.ended(ended(**changes))
    assert fleet.transfers is not None
    assert not fleet.transfers.lines()


def test_nothing_is_measured_while_no_engine_has_a_zone() -> None:
    fleet = zoned()
    fleet.ended(ended())
    seen = [fleet.transfers is None]
    for zones in ({"decode": "b"}, {}):
        enter(fleet, **zones)
        seen.append(fleet.transfers is None)
    assert seen == [True, False, True]


def test_the_pairs_of_a_zone_that_is_gone_are_forgotten() -> None:
    fleet = zoned(prefill="a", decode="b")
    for _ in range(ENOUGH):
        fleet.ended(ended())
    enter(fleet, prefill="a", decode="c")
    assert fleet.transfers is not None
    assert not fleet.transfers.lines()
