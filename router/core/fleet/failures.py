"""Interprets failed legs: what they tell about the engine."""

from typing import Final

from router.core.events import LegFailed
from router.core.fleet.member import Member
from router.core.values import Failure, FailureKind

__all__ = ["cause", "is_part_of_crash", "is_unreachable"]

CAUSES: Final = {
    FailureKind.REFUSED: "it refused a connection",
    FailureKind.RESET: "it closed a connection before it answered a request",
    FailureKind.BROKEN: "it broke an answer off",
    FailureKind.TIMEOUT: "it sent nothing for longer than the time-outs allow",
    FailureKind.UNAUTHORIZED: "it refused the router's API key: see --engine-api-key",
    FailureKind.STALLED: "it produced no tokens, with open streams",
}
"""Text for the cause of a failure, where the event has none."""

SAME_CRASH_SECONDS: Final = 1.0
"""Failures within this many seconds, of requests sent before the first of them, count as one
crash."""


def cause(failure: LegFailed | Failure) -> str:
    """The cause of the failure, for operators."""
    return failure.cause or CAUSES[failure.kind]


def is_unreachable(failure: LegFailed) -> bool:
    """Whether the failure means that the engine cannot be reached."""
    return failure.kind in (FailureKind.REFUSED, FailureKind.RESET)


def is_part_of_crash(failure: LegFailed, member: Member, now: float) -> bool:
    """Whether the failure belongs to the same crash as the first of the member's current failures
    in a row: when an engine crashes, all its answers break at once. Failures of requests that were
    sent after the crash count separately."""
    return (
        failure.kind in (FailureKind.BROKEN, FailureKind.RESET)
        and now - member.failing_since < SAME_CRASH_SECONDS
        and failure.asked_at <= member.failing_since
    )
