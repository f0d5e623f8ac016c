"""The summary of the live page and pd-router top: whether all is well, and if not, what is
wrong."""

from collections.abc import Sequence
from typing import Any, Final, Literal

from router.core.fleet.member import Exclusion
from router.core.health import State
from router.core.values import Role

__all__ = ["Severity", "severity", "verdict"]

Json = dict[str, Any]

Severity = Literal["good", "warn", "bad"]

BAD: Final = (State.DOWN, Exclusion.EJECTED, Exclusion.STALLED)

MAX_NAMED: Final = 5
"""Most engines that are named; the tables have all of them."""


def severity(status: State | Exclusion, *, speed_probes_fail: bool = False) -> Severity:
    """The severity of an engine's status. Speed probes are made only where something is wrong."""
    if status is State.UP:
        return "warn" if speed_probes_fail else "good"
    return "bad" if status in BAD else "warn"


def verdict(
    engines: Sequence[Json],
    usable: int,
    *,
    lacks_prefill: bool = False,
    panics: Sequence[Role] = (),
) -> Json:
    """The verdict on the entries of engines: number of problems, worst severity, and a sentence.
    `usable`: how many decode engines may get requests. `lacks_prefill`: there should be prefill
    engines, but none may get requests. `panics`: the roles whose excluded engines are used."""
    troubled = [each for level in ("bad", "warn") for each in engines if each["severity"] == level]
    found = [_trouble(each) for each in troubled]
    if len(found) > MAX_NAMED:
        found[MAX_NAMED:] = [f"and {len(found) - MAX_NAMED} more"]
    worst = troubled[0]["severity"] if troubled else "warn" if lacks_prefill else "good"
    found[:0] = [f"Panic: {role} engines that are not in order get requests" for role in panics]
    if lacks_prefill:  # the decode engines compute all prompts
        found.insert(0, "No prefill engine can take requests")
    if not usable:
        worst = "bad"
        found.insert(0, "No decode engine can take requests")
    return {
        "severity": worst,
        "troubles": len(troubled) + lacks_prefill + (not usable),
        "text": "; ".join(found) or "All engines are up",
    }


def _trouble(engine: Json) -> str:
    text = f"{engine['role']} {engine['url'].partition('://')[2]} is {engine['status']}"
    return f"{text}, and its speed probes fail" if engine["speed_probes_fail"] else text
