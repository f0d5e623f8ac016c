from dataclasses import replace

import pytest

from benchmarks.comparison.bound import bound
from benchmarks.comparison.scenarios import SCENARIOS
from benchmarks.engines.speed import FREEZE, Change

HEALTHY = replace(SCENARIOS["healthy"], prefill_s=None)
# Of 50 tokens on an engine that prefills itself: 40 ms and 49 steps.
ALONE = 1.02


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("healthy", 384 / ALONE),
        ("slow-engine", 384 / ALONE),  # the other seven have slots for all
        ("slow-engine-2x", 384 / ALONE),
        ("slow-engine-full", (7 * 64 + 64 / 8) / ALONE),  # 48 streams wait wherever they are
        ("half-slow", (256 + 128 / 2) / ALONE),
        ("freeze", 384 / ALONE),
        ("recovery", 384 / ALONE),
        ("slow-prefill", 224 / 1.04),
    ],
)
def test_the_bounds_of_the_table(name: str, expected: float) -> None:
    assert bound(SCENARIOS[name]) == pytest.approx(expected)


def test_a_request_without_room_waits() -> None:
    assert bound(replace(HEALTHY, clients=9999)) == pytest.approx(512)
    assert bound(replace(HEALTHY, clients=9999, slots=None)) == pytest.approx(9999)


def test_the_fastest_engines_are_filled_first() -> None:
    slow = tuple(Change(0, number, 4) for number in range(7))
    assert bound(replace(HEALTHY, clients=64, changes=slow)) == pytest.approx(64)
    assert bound(replace(HEALTHY, clients=128, changes=slow)) == pytest.approx(64 + 16)


def test_a_change_counts_from_its_time_on() -> None:
    full = replace(HEALTHY, clients=512, requests=5120)
    stopped = tuple(Change(5, number, FREEZE) for number in range(8))
    going = tuple(Change(15, number, 1) for number in range(8))
    assert bound(replace(full, changes=stopped + going)) == pytest.approx(5120 / 20)
    assert bound(replace(full, changes=stopped)) == 0
    assert bound(replace(full, requests=512, changes=stopped)) == pytest.approx(512)


def test_prefill_engines_are_a_limit_of_their_own() -> None:
    slow = replace(SCENARIOS["slow-prefill"], prefill_slots=1)
    assert bound(slow) == pytest.approx(3 / 0.04 + 1 / 0.32)
    none = tuple(Change(0, number, FREEZE) for number in range(4, 8))
    assert bound(replace(slow, changes=none)) == 0
