"""A stream that goes on with another engine: a plan around the plan of the request.

When an engine fails behind the first token, the inner plan has ended with its `Stream`. The next
engine is sent what the journal carries, and computes prompt and carried tokens itself.
"""

from router.core.continuation.journal import Journal
from router.core.events import FellBack
from router.core.plans.direct import decode_directly
from router.core.plans.steps import Plan, Release
from router.core.request_facts import Facts
from router.core.values import DECODE, Endpoint

__all__ = ["outliving"]


def outliving(plan: Plan, facts: Facts, journal: Journal) -> Plan:
    """Raises NoEngine if there is no other engine, EngineFailed and the like if all have failed."""
    yield from plan
    tried: frozenset[Endpoint] = frozenset()
    while (endpoint := journal.take_cut()) is not None:
        tried |= {endpoint}
        yield Release(endpoint)
        journal.resume(facts)
        yield FellBack(DECODE, "continued")
        yield from decode_directly(facts, tried)
