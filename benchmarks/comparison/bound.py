"""The arithmetic bound of a finite job, which no router can beat.

A stream with a slot of an engine takes tokens x step x factor; the best split of a closed loop's
streams fills the slots of the fastest engines first; the rest waits. A prefill on the
engine itself takes the place of the first step; a prefill leg adds its time to each stream and its
engines' capacity as a limit. Pure. Overheads, the time to the
next step and the last answers' way out are not in it.
"""

from collections.abc import Sequence

from benchmarks.comparison.scenarios import Scenario
from benchmarks.engines import speed


def rate(scenario: Scenario, factors: Sequence[float | None]) -> float:
    """Requests per second while the engines have these factors."""
    decode = factors[: scenario.decode_engines]
    prefill = factors[scenario.decode_engines :]
    has_legs = scenario.prefill_s and scenario.prefill_engines
    before, limit = _prefill(scenario, prefill) if has_legs else (0.0, float("inf"))
    left, total = float(scenario.clients), 0.0
    answer_s = scenario.answer_s
    if scenario.prefill_s and not has_legs:
        answer_s += scenario.prefill_s - scenario.step_s
    for factor in _fastest(decode):
        alone = answer_s * factor
        most = left / (before + alone)
        mine = most if scenario.slots is None else min(scenario.slots / alone, most)
        total += mine
        left -= mine * (before + alone)
    return min(total, limit)


def _prefill(scenario: Scenario, factors: Sequence[float | None]) -> tuple[float, float]:
    """The seconds that a prefill takes at best, and the requests per second of all engines."""
    if not _fastest(factors):
        return 0.0, 0.0
    taken = [(scenario.prefill_s or 0.0) * factor for factor in _fastest(factors)]
    if scenario.prefill_slots is None:
        return taken[0], float("inf")
    return taken[0], sum(scenario.prefill_slots / each for each in taken)


def _fastest(factors: Sequence[float | None]) -> list[float]:
    return sorted(factor for factor in factors if factor is not None)


def bound(scenario: Scenario) -> float:
    """Requests per second over the whole job, through all changes of speed."""
    left = float(scenario.requests or 0)
    for begin, end in speed.phases(scenario.changes):
        now = rate(scenario, speed.factors(scenario.changes, scenario.engines, begin))
        if left <= now * (end - begin) and now:
            return (scenario.requests or 0) / (begin + left / now)
        left -= now * (end - begin) if now else 0.0
    return 0.0
