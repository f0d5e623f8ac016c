"""Decode directly: the client's own request on a decode engine, retried on another where that is
safe."""

from collections.abc import Generator
from typing import Any, Final

from router.core.errors import NoEngine, NoPartner
from router.core.events import FellBack
from router.core.plans.prefill import KV_KEY, kv_params
from router.core.plans.steps import Lease, Outcome, Plan, Release, Send, Step, Stream
from router.core.request_facts import Facts
from router.core.retry import ATTEMPTS, KEPT, error_of, may_replay, may_retry_elsewhere, reason_of
from router.core.values import DECODE, Endpoint, Reply
from router.core.wire.jsonspan import with_member

__all__ = [
    "decode_directly",
    "decode_elsewhere",
    "direct",
    "finish_with",
    "release_and_lease_other",
]

LEASE: Final = Lease(DECODE)
"""The first step of nearly every plan."""


def decode_directly(
    facts: Facts,
    tried: frozenset[Endpoint] | None = None,
    leased: Endpoint | None = None,
    failed_loads: int = 0,
) -> Plan:
    """Lease a decode engine that serves the whole request, and retry on others where that is safe.

    Engines in `tried` (default: `facts.tried`) have failed this request: they are excluded and
    count as attempts.
    `failed_loads` count as attempts too, but their engines may be tried again. If `leased` is
    given, it is the first engine. Raises NoEngine if no engine is available.
    """
    if tried is None:
        tried = facts.tried
    endpoint = leased or (yield Lease(DECODE, tried) if tried else LEASE)
    replay = may_replay(facts)
    while True:
        body = facts.raw if not facts.prompt_ids else with_prompt_ids(facts)
        outcome = yield Stream(endpoint, facts.path, body, KEPT, False, replay, None, facts.lead)
        if outcome is None:
            return
        tried |= {endpoint}
        other = None
        if len(tried) + failed_loads < ATTEMPTS and may_retry_elsewhere(outcome, facts):
            other = yield from release_and_lease_other(endpoint, tried, outcome)
        if other is None:
            yield from finish_with(outcome)
            return
        endpoint = other


direct = decode_directly
"""The plan of a request that needs no remote prefill."""


def with_prompt_ids(facts: Facts) -> bytes:
    """The body of a continued chat."""
    return with_member(facts.raw, KV_KEY, kv_params(facts, b"{}"))


def release_and_lease_other(
    endpoint: Endpoint, tried: frozenset[Endpoint], outcome: Outcome, *, computes: bool = True
) -> Generator[Step, Any, Endpoint | None]:
    """Release an endpoint and lease another one. Returns None if there is no other. Raises
    NoPartner if there are others, but none that can load the KV cache of the request's prefill."""
    yield Release(endpoint)
    try:
        other = yield Lease(endpoint.role, tried, computes)
    except NoPartner:
        raise
    except NoEngine:
        return None
    yield FellBack(endpoint.role, reason_of(outcome))
    return other  # type: ignore[no-any-return]


def decode_elsewhere(facts: Facts, decode: Endpoint, outcome: Outcome) -> Plan:
    """Have another decode engine compute the prompt, if the request may be retried."""
    other = None
    tried = frozenset({decode})
    if may_retry_elsewhere(outcome, facts):
        other = yield from release_and_lease_other(decode, tried, outcome)
    if other is None:
        yield from finish_with(outcome)
    else:
        yield from decode_directly(facts, tried, other)


def finish_with(outcome: Outcome) -> Plan:
    """Send the engine's own reply to the client. Raises the error of a failure."""
    if not isinstance(outcome, Reply):
        raise error_of(outcome)
    yield Send(outcome)
