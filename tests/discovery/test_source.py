"""Retry delays double up to a limit, and an outage is logged once."""

from random import Random

import pytest

from router.discovery.source import FIRST_SECONDS, LONGEST_SECONDS, Backoff, Outage


def test_delays_double_up_to_a_limit_and_start_again_after_a_success() -> None:
    backoff = Backoff(Random(1))
    ceilings = [min(FIRST_SECONDS * 2**n, LONGEST_SECONDS) for n in range(12)]
    for ceiling in ceilings:
        assert ceiling / 2 <= backoff.next() <= ceiling
    backoff.reset()
    assert backoff.next() <= FIRST_SECONDS


def test_routers_do_not_come_back_at_the_same_moment() -> None:
    delays = {Backoff(Random(seed)).next() for seed in range(100)}
    assert len(delays) == 100
    assert max(delays) - min(delays) > FIRST_SECONDS / 3


@pytest.fixture
def outage(caplog: pytest.LogCaptureFixture) -> Outage:
    caplog.set_level("INFO")
    return Outage("the API", iter(range(100)).__next__)


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Levels and texts."""
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def test_an_answer_counts_while_no_other_asker_fails() -> None:
    answers: list[int] = []
    outage = Outage("the API", lambda: 0.0, lambda: answers.append(1))
    outage.answered("a")
    outage.failed("b", "forbidden", "no right")
    outage.answered("a")
    outage.succeeded("a")
    assert len(answers) == 1
    outage.answered("b")
    outage.succeeded("b")
    assert len(answers) == 3


def test_each_kind_of_failure_is_logged_once(
    outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        outage.failed("a", "unreachable", "no route")
        outage.failed("b", "forbidden", "no right")
    assert told(caplog) == [
        ("WARNING", f"discovery by the API fails; keeping the last known engines: {cause}")
        for cause in ("no route", "no right")
    ]


def test_it_is_over_when_all_askers_are_well(
    outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    outage.failed("a", "unreachable", "no route")
    outage.failed("b", "unreachable", "no route")
    outage.succeeded("a")
    assert len(told(caplog)) == 1
    outage.succeeded("b")
    outage.succeeded("b")
    assert told(caplog)[1:] == [("INFO", "discovery by the API works again, after 1 s")]


def test_the_next_outage_is_logged_again(outage: Outage, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        outage.failed("a", "unreachable", "no route")
        outage.succeeded("a")
    assert [level for level, _ in told(caplog)] == ["WARNING", "INFO"] * 2


def test_no_message_while_all_is_well(outage: Outage, caplog: pytest.LogCaptureFixture) -> None:
    outage.succeeded("a")
    assert told(caplog) == []
