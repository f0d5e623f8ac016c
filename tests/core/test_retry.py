"""Rules of retries on other engines, and their messages."""

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.errors import EngineFailed, EngineTimedOut, Overloaded, RouterError
from router.core.retry import (
    AT_ONCE_SECONDS,
    BACK_OFF_SECONDS,
    back_off,
    error_of,
    full_seconds,
    is_queue_full,
    may_replay,
    may_retry_elsewhere,
    reason_of,
)
from router.core.values import Failure, FailureKind, Reply
from tests.core.fixtures import BROKEN, REFUSED, RESET, RESPONSES, SILENT, reply, request, sample

PLAIN = request(prompt="x")
TRACES: list[dict[str, Any]] = [{"store": True}, {"background": True}]
EXHAUSTED = Failure(FailureKind.EXHAUSTED, "The router has no descriptor.")
NO_ROOM = Failure(FailureKind.NO_ROOM, "The router holds too much.")
UNAUTHORIZED = Failure(FailureKind.UNAUTHORIZED, "The key was refused.")


@pytest.mark.parametrize(
    "outcome",
    [REFUSED, RESET, BROKEN, *(reply(status) for status in (429, 500, 502, 503, 504))],
)
def test_rejected_or_repeatable_requests_move(outcome: Reply | Failure) -> None:
    assert may_retry_elsewhere(outcome, PLAIN)


@pytest.mark.parametrize(
    "outcome", [SILENT, NO_ROOM, *(reply(status) for status in (200, 400, 408, 501, 505))]
)
def test_an_answer_or_a_silence_does_not(outcome: Reply | Failure) -> None:
    assert not may_retry_elsewhere(outcome, PLAIN)


@pytest.mark.parametrize(
    ("answer", "is_full"),
    [
        (reply(503, sample("queue_full.json")), True),
        (reply(429, b'{"error":{}}'), True),
        (reply(500, sample("queue_full.json")), False),
        (reply(503, b"no healthy upstream"), False),
        (reply(503, b'{"error":"unavailable"}'), False),
        (reply(503, b"[]"), False),
    ],
)
def test_a_full_engine_answers_in_vllms_format(answer: Reply, is_full: bool) -> None:
    assert is_queue_full(answer) is is_full
    assert bool(full_seconds(answer)) is is_full


@pytest.mark.parametrize(
    ("stated", "seconds"),
    [
        (b"0", 0.25),
        (b"1", 1.0),
        (b"60", 2.0),
        (b"9" * 400, 2.0),
        (b"", 0.5),
        (b"-1", 0.5),
        (b"Wed, 21 Oct 2026 07:28:00 GMT", 0.5),
    ],
)
def test_a_full_engines_retry_after_is_bounded(stated: bytes, seconds: float) -> None:
    headers = ((b"Content-Type", b"application/json"), (b"Retry-After", stated))
    assert full_seconds(Reply(503, headers, sample("queue_full.json"))) == seconds


@pytest.mark.parametrize("body", TRACES)
@pytest.mark.parametrize(
    ("outcome", "moves"),
    [
        *((REFUSED, True), (UNAUTHORIZED, True), (EXHAUSTED, True), (reply(503), True)),
        *((RESET, False), (BROKEN, False), (reply(500), False)),
    ],
)
def test_stateful_requests_move_only_if_no_engine_started_them(
    body: dict[str, Any], outcome: Reply | Failure, moves: bool
) -> None:
    assert may_retry_elsewhere(outcome, request(RESPONSES, **body)) is moves


@pytest.mark.parametrize("body", TRACES)
def test_stateful_requests_are_never_sent_twice_to_one_engine(body: dict[str, Any]) -> None:
    assert may_replay(PLAIN)
    assert not may_replay(request(RESPONSES, **body))


@pytest.mark.parametrize("body", [{"store": False}, {"store": None}, {"background": False}])
def test_requests_with_store_false_move(body: dict[str, Any]) -> None:
    assert may_retry_elsewhere(RESET, request(RESPONSES, **body))


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (reply(503), "busy"),
        (reply(500), "status_5xx"),
        (reply(599), "status_5xx"),
        (reply(404), "status_4xx"),
        *((Failure(kind, "x"), kind.value) for kind in FailureKind),
    ],
)
def test_each_outcome_has_a_bounded_name(outcome: Reply | Failure, reason: str) -> None:
    assert reason_of(outcome) == reason


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (SILENT, EngineTimedOut),
        (REFUSED, EngineFailed),
        (RESET, EngineFailed),
        (BROKEN, EngineFailed),
        (UNAUTHORIZED, EngineFailed),
        (EXHAUSTED, Overloaded),
        (NO_ROOM, Overloaded),
    ],
)
def test_status_follows_from_the_failure(failure: Failure, kind: type[RouterError]) -> None:
    error = error_of(failure)
    assert type(error) is kind
    assert error.message == failure.message


@given(st.integers(0, 6), st.floats(0, 2 * AT_ONCE_SECONDS), st.integers())
def test_backoff_is_random_and_grows(failed: int, seconds: float, seed: int) -> None:
    wait = back_off(failed, seconds, Random(seed))
    if failed < 2 or seconds >= AT_ONCE_SECONDS:
        assert wait == 0.0
    else:
        assert 0.0 <= wait <= BACK_OFF_SECONDS * 2 ** (failed - 1)


def test_waits_of_many_requests_are_spread_over_the_whole_time() -> None:
    rng = Random(0)
    waits = [back_off(2, 0.0, rng) for _ in range(1000)]
    assert min(waits) < 0.01 * BACK_OFF_SECONDS
    assert max(waits) > 1.99 * BACK_OFF_SECONDS
    assert abs(sum(waits) / len(waits) - BACK_OFF_SECONDS) < 0.1 * BACK_OFF_SECONDS
