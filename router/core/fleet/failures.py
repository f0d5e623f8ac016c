"""What a failed leg says of its engine."""

from typing import Final

from router.core.events import LegFailed
from router.core.fleet.member import Member
from router.core.values import FailureKind

__all__ = ["cause", "is_part_of_crash", "is_unreachable"]

CAUSES: Final = {
    FailureKind.REFUSED: "it refused a connection",
    FailureKind.RESET: "it closed a connection before it answered a request",
    FailureKind.BROKEN: "it broke an answer off",
    FailureKind.TIMEOUT: "it sent nothing for longer than the time-outs allow",
    FailureKind.UNAUTHORIZED: "it refused the router's API key: see --engine-api-key",
    FailureKind.STALLED: "it produced no tokens, with open streams",
}
"""How a request failed, where the event names no cause."""

SAME_CRASH_SECONDS: Final = 1.0
"""Answers that break within this time, sent before the first of them broke, are one crash."""


def cause(failure: LegFailed) -> str:
    """What operators are told."""
    return failure.cause or CAUSES[failure.kind]


def is_unreachable(failure: LegFailed) -> bool:
    """Whether a failed leg means that the engine cannot be reached."""
    return failure.kind in (FailureKind.REFUSED, FailureKind.RESET)


def is_part_of_crash(failure: LegFailed, member: Member, now: float) -> bool:
    """Whether the failure counts together with the first of the member's failures in a row: all
    answers of an engine that crashes break together. Those that were sent after the crash count
    separately."""
    return (
        failure.kind in (FailureKind.BROKEN, FailureKind.RESET)
        and now - member.failing_since < SAME_CRASH_SECONDS
        and failure.asked_at <= member.failing_since
    )
