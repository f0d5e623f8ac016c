"""The constant threshold: direct or remote prefill, with the reason for the record."""

from typing import Final

from router.core.request_facts import Facts
from router.core.values import DIRECT, REMOTE, Decision

__all__ = ["decide"]

NO_PREFILL_POOL: Final = Decision(DIRECT, "no_prefill_pool")
BELOW_THRESHOLD: Final = Decision(DIRECT, "below_threshold")
AT_OR_ABOVE_THRESHOLD: Final = Decision(REMOTE, "at_or_above_threshold")


def decide(facts: Facts, threshold: int, has_prefill_pool: bool) -> Decision:
    """Decide the mode: a request of at least `threshold` estimated tokens is prefilled remotely; 0
    means always."""
    if not has_prefill_pool:
        return NO_PREFILL_POOL
    if facts.direct_reason is not None:
        return Decision(DIRECT, facts.direct_reason)
    if facts.tokens < threshold:
        return BELOW_THRESHOLD
    return AT_OR_ABOVE_THRESHOLD
