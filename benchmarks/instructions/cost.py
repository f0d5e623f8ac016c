"""From counts to the cost of a unit. Pure."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """Per unit: user-space instructions, and system calls by name (None: not counted)."""

    instructions: float
    calls: Mapping[str, float] | None

    @property
    def all_calls(self) -> float | None:
        """System calls of all names."""
        return None if self.calls is None else sum(self.calls.values())


Costs = Mapping[str, Cost]
"""By the key of the unit."""


def per_unit(smaller: Counter[str], larger: Counter[str], units: int) -> dict[str, float]:
    """What each of the `units` between two loads costs, by name."""
    return {
        name: (larger[name] - smaller[name]) / units
        for name in sorted(smaller.keys() | larger.keys())
    }
