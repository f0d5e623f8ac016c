"""Differences between the router's log and the clients' results are found."""

from typing import Any

import pytest

from tests.chaos.both_sides import Ended, unlike

RIGHT = Ended("right", 200, is_logged=True)


def line(outcome: str = "ok", status: int = 200) -> dict[str, Any]:
    return {"id": "a", "outcome": outcome, "status": status}


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        (RIGHT, line()),
        (RIGHT._replace(end="right and closed"), line()),
        (Ended("error", 502, is_logged=True), line("error", 502)),
        (Ended("error event", 502, is_logged=True), line("broken")),
        (Ended("error event", 504, is_logged=True), line("error", 504)),
        (Ended("broken", 502, is_logged=True), line("broken")),
        (Ended("left", 0, is_logged=True), line("client_left", 0)),
        (Ended("left", 0, is_logged=True), line()),
        (Ended("cut", 0, is_logged=False), line("client_left", 0)),
    ],
)
def test_a_line_that_fits(seen: Ended, told: dict[str, Any]) -> None:
    assert unlike({"a": seen}, [told]) == []


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        (RIGHT, line("client_left", 200)),
        (RIGHT, line("broken")),
        (Ended("error", 502, is_logged=True), line("error", 503)),
        (Ended("error event", 502, is_logged=True), line()),
        (Ended("error event", 502, is_logged=True), line("error", 504)),
    ],
)
def test_another_outcome_or_status_is_wrong(seen: Ended, told: dict[str, Any]) -> None:
    assert len(unlike({"a": seen}, [told])) == 1


def test_each_request_has_one_line() -> None:
    assert len(unlike({"a": RIGHT}, [])) == 1
    assert len(unlike({"a": RIGHT}, [line(), line()])) == 1
    assert len(unlike({}, [line()])) == 1


def test_a_killed_worker_loses_only_unwritten_counts_and_none_counts_twice() -> None:
    lost = RIGHT._replace(is_logged=False)
    assert unlike({"a": lost}, []) == unlike({"a": lost}, [line()]) == []
    assert len(unlike({"a": lost}, [line(), line()])) == 1
