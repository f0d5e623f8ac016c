"""Gauges that an engine left standing, and those of an engine that works."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from router.core.speed.scrapes import StaleGauges
from router.core.speed.tuning import STALE_AFTER
from router.core.values import Gauges

ABORTED = Gauges(
    running=40, waiting=2, kv_usage=0.5, generated=900, cache_queries=50, preemptions=1, finished=9
)


def seen(scrapes: Iterable[Gauges | None], *, is_idle: bool = True) -> list[bool]:
    """Whether the gauges are stale, after each scrape."""
    stale, found = StaleGauges(), []
    for gauges in scrapes:
        stale.observe(gauges, is_idle=is_idle)
        found.append(stale.are_stale)
    return found


def test_gauges_that_stand_still_are_stale_after_some_scrapes() -> None:
    assert seen([ABORTED] * (STALE_AFTER + 2)) == [False] * STALE_AFTER + [True, True]


@pytest.mark.parametrize(
    "name",
    ["running", "waiting", "kv_usage", "generated", "cache_queries", "preemptions", "finished"],
)
def test_where_anything_moves_nothing_is_stale(name: str) -> None:
    numbers: list[dict[str, Any]] = [{name: number} for number in range(20)]
    assert not any(seen(replace(ABORTED, **each) for each in numbers))


def test_the_first_move_ends_it() -> None:
    moved = replace(ABORTED, generated=901)
    assert seen([ABORTED] * 9 + [moved, moved])[-3:] == [True, False, False]


def test_a_scrape_that_failed_begins_anew() -> None:
    assert not any(seen([ABORTED, ABORTED, ABORTED, None] * 5))


def test_the_routers_own_streams_may_explain_a_still_counter() -> None:
    assert not any(seen([ABORTED] * 20, is_idle=False))


def test_an_engine_that_counts_only_requests_may_have_stale_gauges() -> None:
    assert seen([replace(ABORTED, generated=None)] * 9)[-1]


def test_without_a_counter_a_steady_load_looks_the_same() -> None:
    assert not any(seen([Gauges(running=40, waiting=2)] * 20))
