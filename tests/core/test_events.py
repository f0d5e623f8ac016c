"""The end of a request in its record."""

import pytest

from router.core.events import FellBack, RequestEnded
from router.core.values import Role


def ended(status: int, outcome: str = "ok", *fallbacks: FellBack) -> RequestEnded:
    """A request that ended so."""
    record = RequestEnded("id-1", "/v1/completions", 0.0)
    record.status, record.outcome, record.fallbacks = status, outcome, fallbacks
    return record


@pytest.mark.parametrize(("status", "outcome"), [(200, "broken"), (502, "error"), (0, "error")])
def test_a_good_status_that_failed_is_an_answer_that_broke_off(status: int, outcome: str) -> None:
    assert ended(status).failure == outcome


@pytest.mark.parametrize(
    ("status", "outcome", "is_bad"),
    [
        (200, "ok", False),
        (400, "error", False),
        (0, "client_left", False),
        (503, "error", True),
        (200, "broken", True),
    ],
)
def test_failures_without_the_clients_fault_are_warnings(
    status: int, outcome: str, *, is_bad: bool
) -> None:
    record = ended(status, outcome)
    assert record.has_failed is record.is_bad is is_bad


def test_operators_should_know_of_fallbacks() -> None:
    record = ended(200, "ok", FellBack(Role.PREFILL, "refused"))
    assert not record.has_failed
    assert record.is_bad


@pytest.mark.parametrize(
    ("generated", "is_stream", "tokens"),
    [(300, True, 300), (300, False, 300), (0, True, 7), (0, False, 0)],
)
def test_tokens_are_usage_or_stream_reads(generated: int, is_stream: bool, tokens: int) -> None:
    record = RequestEnded("id", "/v1/completions", started=0.0)
    record.generated, record.stream, record.chunks = generated, is_stream, 7
    assert record.answer_tokens == tokens
