"""The side-by-side run: every router in turn, several rounds, the same engines and load.

Routers take turns inside a round and rounds start with another router each time, so that a machine
that slows down or speeds up touches all alike. It refuses to know how any of it is drawn.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import quiet, stats, verdict
from benchmarks.measure import Reading, turn
from benchmarks.peers import INSTALL_COMMAND
from benchmarks.processes import StartError
from benchmarks.routers import ROUTERS, Router
from benchmarks.scenarios import Scenario


@dataclass(frozen=True)
class Effort:
    """How much to do: rounds, turns at most until one counts, seconds to wait for quiet."""

    rounds: int
    attempts: int
    patience_s: float


@dataclass(frozen=True)
class Turn:
    """One router in one round. Without `reading` it did not run; `void` says why it counts not."""

    router: str
    round: int
    void: Sequence[str]
    reading: Reading | None = None
    guards: verdict.Guards | None = None
    # The end of the log of a process that did not come up.
    log: str = ""

    @property
    def figures(self) -> dict[str, float | None] | None:
        """None when void: such a turn has no figures to compare."""
        if self.void or self.reading is None:
            return None
        return stats.figures(self.reading)

    def as_dict(self) -> dict[str, Any]:
        """For the results file; a void turn keeps its figures there, marked as void."""
        measured = stats.figures(self.reading) if self.reading else None
        return asdict(self) | {"figures": measured}


@dataclass(frozen=True)
class Comparison:
    """All turns of one run and what could not run at all (router: reason)."""

    scenario: Scenario
    routers: Sequence[str]
    turns: Sequence[Turn]
    missing: dict[str, str]

    def of(self, router: str) -> list[Turn]:
        """One router's turns, one for each round: the last attempt counts."""
        last = {each.round: each for each in self.turns if each.router == router}
        return [last[number] for number in sorted(last)]

    @property
    def base(self) -> str:
        """Ratios are to ours where it ran, else to the first."""
        return "ours" if "ours" in self.routers else self.routers[0]

    def summaries(self, router: str) -> dict[str, stats.Summary | None]:
        """Medians over the valid rounds."""
        return stats.summaries([each.figures for each in self.of(router)])

    def ratios(self, router: str) -> dict[str, stats.Summary | None]:
        """Ratios to the base, paired by round."""
        mine, base = self.of(router), self.of(self.base)
        return stats.ratios([t.figures for t in mine], [t.figures for t in base])

    @property
    def sound(self) -> bool:
        """Everything asked for ran, nothing void, nothing failed."""
        counted = [each for router in self.routers for each in self.of(router)]
        complete = not self.missing and not any(each.void for each in counted)
        return complete and not any(each.figures and each.figures["failures"] for each in counted)


def missing(names: Sequence[str]) -> dict[str, str]:
    """Which of the routers cannot be started here, and what to do about it."""
    peers = {name: ROUTERS[name].peer for name in names}
    return {
        name: f"{peer.requirement} is not installed: {INSTALL_COMMAND}"
        for name, peer in peers.items()
        if peer is not None and not peer.installed()
    }


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
) -> Comparison:
    """Run it. A void turn is repeated at once, up to `effort.attempts` turns in all."""
    absent = missing(names)
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
    return Comparison(scenario, present, turns, absent)


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
    return Turn(router.name, number, void, reading, guard)
