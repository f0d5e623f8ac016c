"""When the router gives up on an engine."""

import pytest

from router.core.routing.engine_timeouts import EngineTimeouts, timeout_failure
from router.core.values import Failure, FailureKind

STREAM = EngineTimeouts(first_byte=60.0, idle=20.0)
WHOLE = EngineTimeouts(30.0)
STALLED = Failure(FailureKind.STALLED, "The engine has stalled.")


def failure(
    timeouts: EngineTimeouts,
    heard_at: float | None,
    now: float,
    *,
    is_stalled: bool = False,
    may_leave: bool = True,
) -> Failure | None:
    """Of an engine that was asked at 100 s."""
    return timeout_failure(
        timeouts, 100.0, heard_at, now, is_stalled=is_stalled, may_leave=lambda: may_leave
    )


@pytest.mark.parametrize(
    ("timeouts", "heard_at", "late_at", "text"),
    [
        (STREAM, None, 160.0, "The engine sent nothing for 60 s."),
        (STREAM, 150.0, 170.0, "The engine sent nothing for 20 s."),
        (STREAM, 101.0, 121.0, "The engine sent nothing for 20 s."),
        (WHOLE, None, 130.0, "The engine did not reply in time."),
        (WHOLE, 129.0, 130.0, "The engine did not reply in time."),  # a part is of no use
    ],
)
def test_each_wait_has_its_limit(
    timeouts: EngineTimeouts, heard_at: float | None, late_at: float, text: str
) -> None:
    assert failure(timeouts, heard_at, late_at - 0.1) is None
    assert failure(timeouts, heard_at, late_at) == Failure(FailureKind.TIMEOUT, text)


def test_a_request_leaves_a_stalled_engine_if_another_can_take_it() -> None:
    assert failure(STREAM, None, 101.0, is_stalled=True) == STALLED
    assert failure(WHOLE, None, 101.0, is_stalled=True) == STALLED
    assert failure(STREAM, None, 101.0, is_stalled=True, may_leave=False) is None
    assert failure(STREAM, None, 101.0) is None


def test_a_late_first_token_is_a_timeout_with_or_without_a_stall() -> None:
    late = failure(STREAM, None, 160.0, is_stalled=True)
    assert late is not None
    assert late.kind is FailureKind.TIMEOUT


def test_the_shorter_limit_sets_the_interval_of_checks() -> None:
    assert STREAM.shortest == 20.0
    assert EngineTimeouts(first_byte=5.0, idle=20.0).shortest == 5.0
    assert WHOLE.shortest == 30.0
