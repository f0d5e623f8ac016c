"""Chooses the engines for a request that Envoy sends (`web/epp`, an endpoint picker).

Envoy sends the request to the decode engine with the prefill engine's address in a header; a
sidecar there requests the prefill and loads the KV cache. Both engines are leased at the same time,
until the answer has ended.
"""

from router.core.errors import NoEngine
from router.core.events import FellBack
from router.core.plans.steps import Lease, Plan, Release, Stream
from router.core.request_facts import Facts
from router.core.values import DECODE, PREFILL, REMOTE, Decision

__all__ = ["pick", "retried"]


def pick(facts: Facts, decision: Decision) -> Plan:
    """Lease the engines that the decision needs. Raises NoEngine."""
    if decision.mode is REMOTE:
        decode = yield Lease(DECODE, computes=False)
        try:
            yield Lease(PREFILL)
        except NoEngine:
            yield FellBack(PREFILL, "no_prefill_engine")
            yield Release(decode)
            decode = yield Lease(DECODE)
    else:
        decode = yield Lease(DECODE)
    yield Stream(decode, facts.path, b"")


def retried() -> FellBack:
    """The event that Envoy has used another decode engine than the first choice."""
    return FellBack(DECODE, "gateway_retry")
