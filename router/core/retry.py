"""What may be tried again elsewhere, and when it may not."""

from router.core.errors import EngineFailed, EngineTimedOut, RouterError
from router.core.values import Facts, Failure, FailureKind, Reply

__all__ = ["ATTEMPTS", "BUSY", "error_of", "may_replay", "may_retry_elsewhere", "reason_of"]

ATTEMPTS = 3
"""Decode engines that one request tries. One that kills engines must not meet them all."""

BUSY = frozenset({503})
"""An engine's 503 means that it took nothing on: vLLM's admission control says "try again on a
different instance"."""


def may_retry_elsewhere(outcome: Reply | Failure, facts: Facts) -> bool:
    """Whether the leg may be sent to another engine; nothing has gone to the client yet.

    Always when the engine took nothing on. After a reset it may have: a generation can be computed
    twice without harm, one that leaves something behind in the engine cannot. A silent engine may
    still be at work, and the client has waited long enough to be told so.
    """
    if isinstance(outcome, Reply):
        return outcome.status in BUSY
    if outcome.kind is FailureKind.REFUSED:
        return True
    kinds = (FailureKind.RESET, FailureKind.BROKEN, FailureKind.STALLED)
    return outcome.kind in kinds and may_replay(facts)


def may_replay(facts: Facts) -> bool:
    """Whether the request may go out again although an engine may have begun it.

    A generation leaves nothing behind unless the client asked the engine to keep it.
    """
    return not (facts.body.get("background") or facts.body.get("store"))


def reason_of(outcome: Reply | Failure) -> str:
    """A bounded name for what went wrong, for logs and metrics."""
    if isinstance(outcome, Failure):
        return outcome.kind
    return "busy" if outcome.status in BUSY else f"status_{outcome.status // 100}xx"


def error_of(failure: Failure) -> RouterError:
    """What the client is told."""
    is_late = failure.kind in (FailureKind.TIMEOUT, FailureKind.STALLED)
    kind = EngineTimedOut if is_late else EngineFailed
    return kind(failure.message)
