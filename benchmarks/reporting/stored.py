"""Reads what `compare` stored, and finds the runs that the results are of.

The newest run of a scenario counts, or the one that `pinned.json` beside it names. A run with
another load than the scenario's row has today is another scenario.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import orjson

from benchmarks.comparison import stats
from benchmarks.comparison.scenarios import SCENARIOS, Scenario
from benchmarks.comparison.stats import Figures
from benchmarks.distributions import Summary
from benchmarks.engines.speed import Change

# Scenario name to file name.
PINNED = "pinned.json"
# What makes a load another one; how long it is watched does not.
LOAD = ("clients", "tokens", "step_s", "prompt_bytes", "requests", "decode_engines",
        "prefill_engines", "token_bytes", "prefill_s", "common_clock",
        "warm_up_clients")  # fmt: skip


@dataclass(frozen=True)
class Stored:
    """One file of `compare`."""

    file: str
    body: dict[str, Any]

    @property
    def scenario(self) -> Scenario:
        """The load of that run; later fields have their defaults."""
        known = {field.name for field in fields(Scenario)}
        given = {name: value for name, value in self.body["scenario"].items() if name in known}
        changes = tuple(Change(**change) for change in given.pop("changes", ()))
        return Scenario(**given, changes=changes)

    @property
    def routers(self) -> list[str]:
        """Those that ran, in the order in which they were named."""
        return list(self.body["routers"])

    @property
    def is_of_the_table(self) -> bool:
        """Whether the load is that of the scenario's row."""
        mine = self.scenario
        row = SCENARIOS.get(mine.name)
        # A machine that allows fewer streams still measures memory per stream.
        same = [name for name in LOAD if not (name == "clients" and mine.endless)]
        return row is not None and all(getattr(mine, n) == getattr(row, n) for n in same)

    @property
    def metrics(self) -> Sequence[stats.Metric]:
        """What is shown of this scenario."""
        return stats.metrics(self.scenario)

    def figures(self, router: str) -> list[Figures | None]:
        """One router's figures by round, of its last attempt; None: void."""
        mine = self._measured(router)
        if not self.scenario.over_direct or "direct" not in self.routers:
            return mine
        return stats.over_direct(mine, self._measured("direct"))

    def _measured(self, router: str) -> list[Figures | None]:
        last = {turn["round"]: turn for turn in self.body["turns"] if turn["router"] == router}
        turns = [last[number] for number in sorted(last)]
        return [None if turn["void"] else turn["figures"] for turn in turns]

    def alone(self, router: str, metric: str) -> Summary | None:
        """Median and range over the valid rounds."""
        return stats.summaries(self.figures(router), [metric])[metric]

    def ratio(self, router: str, against: str, metric: str) -> Summary | None:
        """Median and range of the ratio, paired by round."""
        mine, base = self.figures(router), self.figures(against)
        return stats.ratios(mine, base, [metric])[metric]

    @property
    def void(self) -> int:
        """Turns that did not count, those included that were repeated."""
        return sum(bool(turn["void"]) for turn in self.body["turns"])


def load(directory: Path) -> list[Stored]:
    """All stored runs, newest first; where one of a scenario is pinned, no other of it."""
    pins = directory / PINNED
    pinned: dict[str, str] = orjson.loads(pins.read_bytes()) if pins.exists() else {}
    found = [
        Stored(path.name, orjson.loads(path.read_bytes()))
        for path in sorted(directory.glob("*.json"))
        if path.name != PINNED
    ]
    found = [run for run in found if pinned.get(run.scenario.name, run.file) == run.file]
    return sorted(found, key=lambda run: (run.body["at"], run.file), reverse=True)


def newest(runs: Sequence[Stored], scenario: str, routers: Sequence[str] = ()) -> Stored | None:
    """The newest run of a scenario's row in which all these routers have a round that counts."""
    for run in runs:
        fits = run.scenario.name == scenario and run.is_of_the_table
        if fits and all(any(run.figures(router)) for router in routers):
            return run
    return None
