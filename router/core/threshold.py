"""Direct or disaggregated: one comparison, and the reason that is recorded with it."""

from router.core.values import DIRECT, REMOTE, Decision, Facts

__all__ = ["decide"]


def decide(facts: Facts, threshold: int, has_prefill_pool: bool) -> Decision:
    """A request of at least `threshold` estimated tokens is prefilled remotely; 0 means always."""
    if not has_prefill_pool:
        return Decision(DIRECT, "no_prefill_pool")
    if facts.direct_reason is not None:
        return Decision(DIRECT, facts.direct_reason)
    if facts.tokens < threshold:
        return Decision(DIRECT, "below_threshold")
    return Decision(REMOTE, "at_or_above_threshold")
