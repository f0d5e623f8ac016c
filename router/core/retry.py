"""Which failures may be retried on another engine."""

from random import Random

from router.core.errors import EngineFailed, EngineTimedOut, Overloaded, RouterError
from router.core.values import Facts, Failure, FailureKind, Reply, Role
from router.core.wire.jsonspan import engine_json

__all__ = [
    "ATTEMPTS",
    "BUSY",
    "FALLBACKS",
    "back_off",
    "error_of",
    "full_seconds",
    "is_queue_full",
    "may_replay",
    "may_retry_elsewhere",
    "reason_of",
]

ATTEMPTS = 3
"""How often a request may be sent to decode engines: one that crashes engines must not reach them
all. After a KV cache that could not be loaded it is sent once more at least."""

BUSY = frozenset({429, 503})
"""With these an engine has not begun the request: vLLM's admission control says 503, "try again on
a different instance", other servers' 429."""


BACK_OFF_SECONDS = 0.05
"""Mean wait before the third engine is asked: as Envoy's, which begins at 25 ms."""

AT_ONCE_SECONDS = 0.1
"""An engine that took longer to fail has made the request wait already."""

FULL_SECONDS = 0.5
"""How long an engine that is full comes last. To ask it takes a round trip of the request that
moves on; with a longer time its next free place would stay empty."""

FULL_BOUNDS = 0.25, 2.0
"""Shortest and longest time that an engine's own Retry-After may make of it: that is meant for
clients, who come back all together."""

FALLBACKS = {
    Role.PREFILL: (
        *FailureKind,
        *("busy", "status_5xx", "retry_budget", "no_prefill_engine", "no_kv_params"),
        *("nested_too_deep", "kv_ready_timeout", "tokenize_failed", "no_first_tok", "no_receiver"),
    ),
    Role.DECODE: (
        *(FailureKind.REFUSED, FailureKind.RESET, FailureKind.BROKEN, FailureKind.STALLED),
        *(FailureKind.UNAUTHORIZED, FailureKind.EXHAUSTED),
        *(
            "busy",
            "retry_budget",
            "kv_load_failed",
            "splice_refused",
            "no_partner",
            "gateway_retry",
        ),
    ),
}
"""The reasons of fallbacks, by leg."""


def back_off(failed: int, seconds: float, rng: Random) -> float:
    """Seconds to wait before the next engine is asked, when `failed` have failed a request, the
    last of them after `seconds`.

    The second engine is asked at once: most failures are those of one engine. When it fails at
    once too the pool may be full or restarting, and all its clients' requests would come together.
    """
    if failed < 2 or seconds >= AT_ONCE_SECONDS:
        return 0.0
    return rng.uniform(0.0, BACK_OFF_SECONDS * 2.0 ** (failed - 1))


def may_retry_elsewhere(outcome: Reply | Failure, facts: Facts) -> bool:
    """Whether the leg may be sent to another engine, before anything was sent to the client.

    Always if the engine has not begun it. After a reset it may have: that is harmless unless the
    request stores something in the engine. After a time-out the engine may still be working, and
    the client has waited long enough. Where the router has no room for an answer it would have none
    for another engine's either.
    """
    if isinstance(outcome, Reply):
        return outcome.status in BUSY
    if outcome.is_unseen:
        return True
    kinds = (FailureKind.RESET, FailureKind.BROKEN, FailureKind.STALLED)
    return outcome.kind in kinds and may_replay(facts)


def may_replay(facts: Facts) -> bool:
    """Whether the request may be sent again although an engine may have begun it.

    Not with `store` or `background`, which leave something in the engine.
    """
    return not (facts.body.get("background") or facts.body.get("store"))


def is_queue_full(reply: Reply) -> bool:
    """Whether an engine has refused a request because it has enough of them, in vLLM's words: it
    works. A 503 without an error in this shape is that of a proxy whose engine is gone."""
    if reply.status not in BUSY:
        return False
    try:
        document = engine_json(reply.body)
    except ValueError:
        return False
    return isinstance(document, dict) and isinstance(document.get("error"), dict)


def full_seconds(reply: Reply) -> float:
    """For how long others are asked before the engine of this reply; 0 if it is not full."""
    if not is_queue_full(reply):
        return 0.0
    stated = next((value for name, value in reply.headers if name.lower() == b"retry-after"), b"")
    if not stated.isdigit():  # a date takes a clock that both agree on
        return FULL_SECONDS
    least, most = FULL_BOUNDS
    return min(max(least, float(stated)), most)


def reason_of(outcome: Reply | Failure) -> str:
    """The reason for logs and metrics, one of a few."""
    if isinstance(outcome, Failure):
        return outcome.kind
    return "busy" if outcome.status in BUSY else f"status_{outcome.status // 100}xx"


def error_of(failure: Failure) -> RouterError:
    """The error that is sent to the client."""
    if failure.kind in (FailureKind.EXHAUSTED, FailureKind.NO_ROOM):
        return Overloaded(failure.message)
    is_late = failure.kind in (FailureKind.TIMEOUT, FailureKind.STALLED)
    kind = EngineTimedOut if is_late else EngineFailed
    return kind(failure.message)
