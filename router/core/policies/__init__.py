"""Policies: one file each, one signature, and this table of names.

A policy is a pure function that gives each candidate a score, lower is better. The scheduler breaks
ties (least recently chosen first), so no policy has to be fair by itself.
"""

from collections.abc import Callable, Sequence
from random import Random

from router.core.candidate import Candidate
from router.core.policies.least_loaded import least_loaded
from router.core.policies.round_robin import round_robin
from router.core.policies.shortest_expected_delay import shortest_expected_delay

__all__ = ["AVOID_SLOW", "POLICIES", "Policy"]

Policy = Callable[[Sequence[Candidate], Sequence[int], float, Random], Sequence[float]]
"""(candidates, prompt tokens that each would have to compute, now in seconds, random source) -> a
score for each candidate."""

POLICIES: dict[str, Policy] = {
    "round_robin": round_robin,
    "least_loaded": least_loaded,
    "shortest_expected_delay": shortest_expected_delay,
}
"""By the name that settings have. A new policy is a file of this folder, its test and a line
here."""

AVOID_SLOW: frozenset[Policy] = frozenset({shortest_expected_delay})
"""Policies that avoid slow engines and know prefix caches, so that these are measured for them."""
