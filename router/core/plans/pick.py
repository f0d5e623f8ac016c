"""pick: chooses the engines of a request that an Envoy carries out (`web/epp`).

The prefill engine's address goes to the decode engine with the request; a sidecar there has the
prompt computed and loads the KV cache. Both engines are leased at once, and kept until the answer.
"""

from router.core.errors import NoEngine
from router.core.events import FellBack
from router.core.plans.steps import Lease, Plan, Release, Stream
from router.core.values import DECODE, PREFILL, REMOTE, Decision, Facts

__all__ = ["pick", "retried"]


def pick(facts: Facts, decision: Decision) -> Plan:
    """Lease what the decision needs. Raises NoEngine."""
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
    """The gateway has used another decode engine than the first choice."""
    return FellBack(DECODE, "gateway_retry")
