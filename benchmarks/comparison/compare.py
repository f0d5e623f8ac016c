"""The side-by-side run: every router in turn, several rounds, the same engines and load.

Routers take turns inside a round and rounds start with another router each time, so that a machine
that slows down or speeds up touches all alike.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.comparison import stats, verdict
from benchmarks.comparison.measure import Reading, turn
from benchmarks.comparison.scenarios import Scenario
from benchmarks.distributions import Summary
from benchmarks.routers.table import ROUTERS, Router
from benchmarks.system import quiet
from benchmarks.system.processes import StartError


@dataclass(frozen=True)
class Effort:
    """Rounds, most attempts until a turn is valid, seconds to wait for a quiet machine."""

    rounds: int
    attempts: int
    patience_s: float


@dataclass(frozen=True)
class Turn:
    """One router in one round. Without `reading` it did not run; `void` is the reason why it does
    not count."""

    router: str
    round: int
    void: Sequence[str]
    reading: Reading | None = None
    guards: verdict.Guards | None = None
    # The figures, even of a void turn.
    measured: stats.Figures | None = None
    # How an engine that recovered was used again, second by second.
    recovered: dict[str, Any] | None = None
    # The end of the log of a process that did not come up.
    log: str = ""

    @property
    def figures(self) -> stats.Figures | None:
        """None when void: such a turn has no figures to compare."""
        return None if self.void else self.measured

    def as_dict(self) -> dict[str, Any]:
        """For the results file, which has no raw readings; a void turn keeps its figures there."""
        fields = asdict(replace(self, reading=None))
        fields |= {"figures": fields.pop("measured")}
        always = ("router", "round", "void", "figures")
        return {name: value for name, value in fields.items() if value or name in always}


@dataclass(frozen=True)
class Comparison:
    """All turns of one run and what could not run at all (router: reason)."""

    scenario: Scenario
    routers: Sequence[str]
    turns: Sequence[Turn]
    missing: dict[str, str]
    relative_to: str | None = None

    def of(self, router: str) -> list[Turn]:
        """One router's turns, one for each round: the last attempt counts."""
        last = {each.round: each for each in self.turns if each.router == router}
        return [last[number] for number in sorted(last)]

    @property
    def base(self) -> str:
        """Ratios are to the requested router if it ran, else to the first."""
        asked = self.relative_to
        return asked if asked is not None and asked in self.routers else self.routers[0]

    @property
    def metrics(self) -> Sequence[stats.Metric]:
        """What is shown of this scenario."""
        return stats.metrics(self.scenario)

    def summaries(self, router: str) -> dict[str, Summary | None]:
        """Medians over the valid rounds."""
        return stats.summaries(self._figures(router), self._keys)

    def ratios(self, router: str) -> dict[str, Summary | None]:
        """Ratios to the base, paired by round."""
        return stats.ratios(self._figures(router), self._figures(self.base), self._keys)

    def _figures(self, router: str) -> list[stats.Figures | None]:
        mine = [each.figures for each in self.of(router)]
        if not self.scenario.over_direct or "direct" not in self.routers:
            return mine
        return stats.over_direct(mine, [each.figures for each in self.of("direct")])

    @property
    def _keys(self) -> list[str]:
        return [metric.key for metric in self.metrics]

    def carried(self, router: str) -> list[float]:
        """Requests per engine of a job, decode engines first: means over the valid rounds."""
        valid = [turn.reading for turn in self.of(router) if turn.reading and not turn.void]
        rounds = [[sum(each) for each in reading.engines["arrivals"]] for reading in valid]
        return [sum(counts) / len(rounds) for counts in zip(*rounds, strict=True)]

    @property
    def sound(self) -> bool:
        """Whether every router ran, with no void turn and no failure."""
        counted = [each for router in self.routers for each in self.of(router)]
        complete = not self.missing and not any(each.void for each in counted)
        return complete and not any(each.figures and each.figures["failures"] for each in counted)


def missing(names: Sequence[str], scenario: Scenario) -> dict[str, str]:
    """Which of the routers cannot run this here, and what to do about it."""
    found = {}
    for name in names:
        router = ROUTERS[name]
        if scenario.prefill_engines and not router.two_legs:
            found[name] = "does not do prefill and decode legs as this bench's engines do"
        elif router.peer is not None and not router.peer.installed():
            found[name] = router.peer.advice
    return found


def order(names: Sequence[str], number: int) -> list[str]:
    """The order of routers in a round: rotated by one each time."""
    shift = number % len(names) if names else 0
    return [*names[shift:], *names[:shift]]


def compare(
    scenario: Scenario,
    names: Sequence[str],
    effort: Effort,
    logs: Path,
    progress: Callable[[Turn], None],
    relative_to: str | None = None,
) -> Comparison:
    """Run it. A void turn is repeated at once, up to `effort.attempts` turns in all."""
    absent = missing(names, scenario)
    present = [name for name in names if name not in absent]
    turns: list[Turn] = []
    for number in range(effort.rounds):
        for name in order(present, number):
            for _ in range(effort.attempts):
                quiet.wait(effort.patience_s)
                turns.append(_take(scenario, ROUTERS[name], number, logs))
                progress(turns[-1])
                if not turns[-1].void:
                    break
    return Comparison(scenario, present, turns, absent, relative_to)


def _take(scenario: Scenario, router: Router, number: int, logs: Path) -> Turn:
    place = logs / f"{number}-{router.name}"
    place.mkdir(parents=True, exist_ok=True)
    try:
        reading = turn(scenario, router, place)
    except StartError as error:
        return Turn(router.name, number, [str(error)], log=error.log)
    guard = verdict.guards(reading, scenario, os.cpu_count() or 1)
    void = verdict.reasons(guard, scenario)
    void += verdict.wrong_legs(reading, scenario, router.command is not None)
    measured, recovered = stats.figures(reading, scenario), stats.returned(reading, scenario)
    return Turn(router.name, number, void, reading, guard, measured, recovered)
