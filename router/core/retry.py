"""Which failures may be retried on another engine."""

from random import Random

from router.core.errors import EngineFailed, EngineTimedOut, Overloaded, RouterError
from router.core.request_facts import Facts
from router.core.values import Failure, FailureKind, Reply, Role
from router.core.wire.jsonspan import engine_json

__all__ = [
    "ATTEMPTS",
    "BUSY",
    "FALLBACK_REASONS",
    "FULL_SECONDS",
    "KEPT",
    "LOAD_FAILED",
    "RETRIES_ON_5XX",
    "SERVER_ERRORS",
    "back_off",
    "error_of",
    "full_seconds",
    "is_queue_full",
    "is_shutdown",
    "may_replay",
    "may_retry_elsewhere",
    "reason_of",
]

ATTEMPTS = 3
"""Most decode engines that a request is sent to: a request that crashes engines must not reach all
of them. After a failed KV load it is sent at least once more."""

BUSY = frozenset({429, 503})
"""Statuses with which an engine has not started the request: vLLM's admission control answers 503,
"try again on a different instance", other servers 429."""

SERVER_ERRORS = frozenset({500, 502, 504})
"""Statuses of an engine that failed, or of a proxy in front of it: another engine may not fail. A
501 or 505 would be the same everywhere."""

LOAD_FAILED = frozenset({500})
"""The status of a failed KV load with vLLM's default kv_load_failure_policy "fail"."""

KEPT = BUSY | SERVER_ERRORS
"""Statuses of a decode engine that its plan gets before the client does."""

RETRIES_ON_5XX = 1
"""Most further engines, by default, for a request that has got one of `SERVER_ERRORS`: if it is the
request that breaks engines, it must not go through the pool."""

BACK_OFF_SECONDS = 0.05
"""Mean wait in seconds before a third engine is used; like in Envoy, which begins with 25 ms."""

AT_ONCE_SECONDS = 0.1
"""Seconds after which a failure has taken so long that no further wait is needed."""

SHUTDOWN = b"cannot schedule new futures after "

FULL_SECONDS = 0.5
"""Seconds for which an engine that reported to be full is only used if all are full. Trying it
costs a round trip; with a longer time its next free slot would stay unused."""

FULL_BOUNDS = 0.25, 2.0
"""Bounds in seconds when this time is taken from the engine's Retry-After, which is meant for
clients that would all return at once."""

FALLBACK_REASONS = {
    Role.PREFILL: (
        *FailureKind,
        *("busy", "status_5xx", "retry_budget", "no_prefill_engine", "no_kv_params"),
        *("nested_too_deep", "kv_ready_timeout", "tokenize_failed", "no_first_tok", "no_receiver"),
        *("no_engine_id", "unpinned_rank", "given_id", "status_4xx"),
    ),
    Role.ENCODE: (
        *FailureKind,
        *("busy", "status_4xx", "status_5xx", "no_encode_engine", "no_ec_params"),
    ),
    Role.DECODE: (
        *(FailureKind.REFUSED, FailureKind.RESET, FailureKind.BROKEN, FailureKind.STALLED),
        *(FailureKind.UNAUTHORIZED, FailureKind.EXHAUSTED, FailureKind.SHUTTING_DOWN),
        *(
            "busy",
            "status_5xx",
            "retry_budget",
            "kv_load_failed",
            "splice_refused",
            "no_partner",
            "store_miss",
            "gateway_retry",
            "continued",
            "moved",
        ),
    ),
}
"""The reasons of fallbacks by leg."""


def back_off(failed: int, seconds: float, rng: Random) -> float:
    """Seconds to wait before the next engine is used. `failed` engines have failed the request, the
    last of them after `seconds`.

    The second engine is used at once, because most failures concern a single engine. If it fails at
    once too, the pool may be full or restarting, and all clients' requests would return at the same
    time.
    """
    if failed < 2 or seconds >= AT_ONCE_SECONDS:
        return 0.0
    return rng.uniform(0.0, BACK_OFF_SECONDS * 2.0 ** (failed - 1))


def may_retry_elsewhere(outcome: Reply | Failure, facts: Facts) -> bool:
    """Whether the leg may be sent to another engine, before anything was sent to the client.

    Always if the engine has not started it. After an error or a connection reset it may have, which
    is harmless unless the request stores something in the engine. After a time-out the engine may
    still be working, and the client has waited long enough. If the router has no memory for an
    answer, it would have none for another engine's answer.
    """
    if isinstance(outcome, Reply):
        is_failure = outcome.status in SERVER_ERRORS
        return outcome.status in BUSY or (is_failure and may_replay(facts))
    if outcome.is_unseen:
        return True
    kinds = (FailureKind.RESET, FailureKind.BROKEN, FailureKind.STALLED)
    return outcome.kind in kinds and may_replay(facts)


def may_replay(facts: Facts) -> bool:
    """Whether the request may be sent again although an engine may have started it.

    Not with `store` or `background`, which leave state in the engine.
    """
    return not (facts.body.get("background") or facts.body.get("store"))


def is_queue_full(reply: Reply) -> bool:
    """Whether an engine has refused a request because it is full, by vLLM's error message; such an
    engine is healthy. A 503 without an error in this format comes from a proxy whose engine is
    gone."""
    if reply.status not in BUSY:
        return False
    try:
        document = engine_json(reply.body)
    except ValueError:
        return False
    return isinstance(document, dict) and isinstance(document.get("error"), dict)


def is_shutdown(reply: Reply) -> bool:
    """Whether an engine has refused a request because it shuts down, by the error of Python's
    executor. vLLM with --shutdown-timeout answers so from SIGTERM on, with good health."""
    return reply.status == 500 and SHUTDOWN in reply.body


def full_seconds(reply: Reply) -> float:
    """Seconds for which other engines are preferred to the one with this reply; 0 if it is not
    full."""
    if not is_queue_full(reply):
        return 0.0
    stated = next((value for name, value in reply.headers if name.lower() == b"retry-after"), b"")
    if not stated.isdigit():  # a date would require synchronised clocks
        return FULL_SECONDS
    least, most = FULL_BOUNDS
    return min(max(least, float(stated)), most)


def reason_of(outcome: Reply | Failure) -> str:
    """The reason for logs and metrics, from a fixed set."""
    if isinstance(outcome, Failure):
        return outcome.kind
    return "busy" if outcome.status in BUSY else f"status_{outcome.status // 100}xx"


def error_of(failure: Failure) -> RouterError:
    """The error to be sent to the client."""
    if failure.kind in (FailureKind.EXHAUSTED, FailureKind.NO_ROOM):
        return Overloaded(failure.message)
    is_late = failure.kind in (FailureKind.TIMEOUT, FailureKind.STALLED)
    kind = EngineTimedOut if is_late else EngineFailed
    return kind(failure.message)
