"""The plan of connectors whose decode requests have a KV reference: prefill on one engine, then
decode on another, which loads the KV cache by the reference.

What this module guarantees for each of them:

- A reference is used once. When the decode engine has read the KV cache, the prefill engine frees
  the blocks, so a second read could return another request's cache (vllm#52234), or with Mooncake
  wait for minutes. Only a refused connection proves that the reference was not used.
- A failed KV load is hidden from the client: the prompt is prefilled once more, then the request
  is decoded directly. It counts as an attempt (`ATTEMPTS`) and does not exclude the engine.
- If all engines that could load the KV cache (same vLLM version and model) go down during the
  prefill, any other decode engine computes the prompt.
"""

from collections.abc import Callable, Generator
from typing import Any, Final

from router.core.errors import NoEngine, NoPartner
from router.core.events import FellBack
from router.core.plans.direct import decode_directly, finish_with, release_and_lease_other
from router.core.plans.prefill import KV_KEY, PREFILLS, kv_params
from router.core.plans.splices import prefill_splice
from router.core.plans.steps import (
    Check,
    Lease,
    Outcome,
    Plan,
    Release,
    Retry,
    Splice,
    Step,
    Stream,
)
from router.core.request_facts import Facts
from router.core.retry import ATTEMPTS, KEPT, LOAD_FAILED, may_retry_elsewhere, reason_of
from router.core.values import DECODE, PREFILL, Endpoint, Failure, FailureKind, Reply
from router.core.wire.jsonspan import with_member

__all__ = ["Prefilled", "by_reference"]

Prefilled = Callable[[Facts, bytes], Generator[Step, Any, Reply | None]]
"""The steps of a prefill with a body. Returns the reply; None if no engine has answered well."""

NO_PARTNER: Final = Failure(FailureKind.REFUSED, "No decode engine can use the KV cache.")
"""The outcome of a decode leg for which there is no engine."""


def by_reference(
    facts: Facts,
    body_of: Callable[[Facts], bytes | None],
    prefilled: Prefilled,
    reference_of: Callable[[Reply], bytes | None],
    aim: Callable[[Endpoint], None] | None = None,
) -> Plan:
    """The plan of a connector whose decode requests have a KV reference.

    `body_of` writes the body of prefill requests; None if it cannot be written. `prefilled` returns
    the reply to one, and `reference_of` the reference that follows from it; None if the prefill
    engine has not kept the KV cache.

    A prefill may take minutes. A decode engine leased before it would be chosen by outdated loads,
    and would count as busy meanwhile. So before the prefill it is only checked that there is one.
    With `aim` it is leased then: the prefill request names it, and no other can use the reference.
    So it is if the id of the response, which both requests have, names it.
    """
    tried = facts.tried
    failed_loads = 0
    yield Check(DECODE, tried)
    body = body_of(facts)
    if body is None:
        yield FellBack(PREFILL, "nested_too_deep")
        yield from decode_directly(facts, tried)
        return
    for _ in range(PREFILLS):
        decode, reply, reference = yield from _prefill(
            facts, tried, body, prefilled, reference_of, aim
        )
        if reply is not None and reply.status >= 400:
            yield from finish_with(reply)
            return
        if reply is None or reference is None:
            break
        splice = prefill_splice(facts, reply)
        reply = None  # do not keep a large reply beside the body that contains its reference
        tried, outcome = yield from _decode(facts, tried, decode, reference, splice, failed_loads)
        if outcome is None:
            return
        # Python 3.11 does not trace a jump after a throw() into the generator above.
        if outcome is NO_PARTNER:  # pragma: no branch
            yield FellBack(DECODE, "no_partner")
            break
        is_load_failure = _is_load_failure(outcome)
        try:
            yield Check(DECODE, tried)
        except NoEngine:
            if is_load_failure:  # its message does not help the client
                raise
            yield from finish_with(outcome)
            return
        if is_load_failure and not (yield Retry(DECODE)):
            yield from finish_with(outcome)
            return
        failed_loads += is_load_failure
        yield FellBack(DECODE, "kv_load_failed" if is_load_failure else reason_of(outcome))
    yield from decode_directly(facts, tried, None, failed_loads)


def _prefill(
    facts: Facts,
    tried: frozenset[Endpoint],
    body: bytes,
    prefilled: Prefilled,
    reference_of: Callable[[Reply], bytes | None],
    aim: Callable[[Endpoint], None] | None,
) -> Generator[Step, Any, tuple[Endpoint | None, Reply | None, bytes | None]]:
    """Prefill, for a leased decode engine if the request names one. Returns that engine, the reply
    and its reference; without a reference nothing is leased."""
    decode: Endpoint | None = None
    if aim is not None or facts.names_keeper:
        try:
            decode = yield Lease(DECODE, tried, computes=False)
        except NoPartner:
            yield FellBack(DECODE, "no_partner")
            return None, None, None
        if aim is not None:
            aim(decode)
    reply = yield from prefilled(facts, body)
    reference = None
    if reply is not None and reply.status < 400:
        reference = reference_of(reply)
        if reference is None:
            yield FellBack(PREFILL, "no_kv_params")
    if reference is None and decode is not None:
        yield Release(decode)
    return decode, reply, reference


def _decode(
    facts: Facts,
    tried: frozenset[Endpoint],
    leased: Endpoint | None,
    reference: bytes,
    splice: Splice | None,
    failed_loads: int,
) -> Generator[Step, Any, tuple[frozenset[Endpoint], Outcome | None]]:
    """Lease a decode engine, unless one is leased, and send it the client's own body with the
    reference.

    If a connection is refused, the unused reference goes to another engine. Returns the tried
    engines, and None once the client has its answer, or an outcome that needs another prefill;
    nothing is leased in that case. Raises NoEngine if all decode engines went down during the
    prefill.
    """
    params = kv_params(facts, reference) if facts.prompt_ids else reference
    try:
        decode = leased or (yield Lease(DECODE, tried, computes=False))
    except NoPartner:
        return tried, NO_PARTNER
    while True:
        outcome = yield Stream(
            decode,
            facts.path,
            with_member(facts.raw, KV_KEY, params),
            keep=KEPT,
            hold=True,
            replay=False,
            splice=splice,
            lead=facts.lead,
            keeps_id=True,
        )
        if outcome is None:
            return tried, None
        is_load_failure = _is_load_failure(outcome)
        if not is_load_failure:
            tried |= {decode}
        has_attempt = len(tried) + failed_loads < ATTEMPTS
        if has_attempt and leased is None and _is_refused(outcome):
            try:
                other = yield from release_and_lease_other(decode, tried, outcome, computes=False)
            except NoPartner:
                return tried, NO_PARTNER
            # Python 3.11 does not trace a frame that continues after a throw() into a generator
            # below it.
            if other is None:  # pragma: no cover - test_with_no_other_decode_engine_...
                yield from finish_with(outcome)
                return tried, None
            decode = other
        elif is_load_failure or (has_attempt and may_retry_elsewhere(outcome, facts)):
            yield Release(decode)
            return tried, outcome
        else:
            yield from finish_with(outcome)
            return tried, None


def _is_refused(outcome: Outcome) -> bool:
    return isinstance(outcome, Failure) and outcome.is_unseen


def _is_load_failure(outcome: Outcome) -> bool:
    return isinstance(outcome, Reply) and outcome.status in LOAD_FAILED
