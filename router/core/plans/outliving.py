"""A stream that goes on with another engine: a plan around the plan of the request.

When an engine fails behind the first token, the inner plan has ended with its `Stream`. The next
engine is sent what the journal carries, and computes prompt and carried tokens itself.
"""

from router.core.continuation.journal import Journal
from router.core.events import FellBack
from router.core.plans.direct import decode_directly
from router.core.plans.steps import Plan, Release
from router.core.request_facts import Facts
from router.core.retry import ATTEMPTS, error_of
from router.core.values import DECODE

__all__ = ["outliving"]


def outliving(plan: Plan, facts: Facts, journal: Journal) -> Plan:
    """Raises NoEngine if there is no other engine, and the error of the failure once ATTEMPTS
    engines were leased, before the first token or behind it: the request may break them."""
    yield from plan
    while (failure := journal.take_cut()) is not None:
        if len(journal.engines) >= ATTEMPTS:
            raise error_of(failure)
        yield Release(journal.engine)
        journal.resume(facts)
        yield FellBack(DECODE, "continued")
        yield from decode_directly(facts, journal.engines)
