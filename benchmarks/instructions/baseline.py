"""The stored costs of our routers, and which figures have grown since.

Counts depend on the interpreter, the machine and the form of the router. The file has figures for
each; without figures there is no comparison.
"""

import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from benchmarks.instructions.cost import Costs
from benchmarks.system import machine

Figures = Mapping[str, Mapping[str, float]]
"""By the key of the unit and the name of the figure."""

# Whose versions change counts.
PACKAGES = ("uvloop", "httptools", "uvicorn", "orjson")


CALLS = 0.75
"""System calls of a unit that may be noise on a busy machine. One that is made each time is a whole
one."""

UNSTABLE = ("large", "new-100k", "again-100k")
"""Units whose system calls are not compared: a large body comes in as many reads as the kernel and
the other processes of a busy machine make of it."""


@dataclass(frozen=True)
class Stored:
    """The figures for one kind of interpreter, and the versions that they were counted with."""

    figures: Figures
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Change:
    """One figure then and now."""

    unit: str
    figure: str
    then: float
    now: float

    @property
    def growth(self) -> float:
        """As a share: 0.03 is 3 % more."""
        return self.now / self.then - 1 if self.then else float(self.now > 0)

    def has_grown(self, most: float) -> bool:
        """By a larger share than `most`; system calls by more than `CALLS` as well."""
        is_noise = self.figure == "system calls" and self.now - self.then <= CALLS
        return self.growth > most and not is_noise

    def __str__(self) -> str:
        return (
            f"{self.unit}: {self.figure} {self.then:,.4g} -> {self.now:,.4g} ({self.growth:+.1%})"
        )


def kind(router: str = "") -> str:
    """What counts hold for: of this router, or of any."""
    python = f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}"
    any_router = f"{python}, {machine.build()}, {platform.machine()}, {machine.form()}"
    return f"{any_router}: {router}" if router else any_router


def versions() -> dict[str, str]:
    """What counts depend on within a kind."""
    return {
        "python": platform.python_version(),
        **{name: each for name, each in machine.versions().items() if name in PACKAGES},
    }


def figures(costs: Costs) -> Figures:
    """What is stored and compared."""
    found: dict[str, dict[str, float]] = {}
    for key, cost in costs.items():
        found[key] = {"instructions": round(cost.instructions)}
        if cost.all_calls is not None and key not in UNSTABLE:
            found[key]["system calls"] = round(cost.all_calls, 2)
    return found


def read(path: Path, kind_: str) -> Stored | None:
    """The figures for this kind; None where there are none."""
    entry = _read(path).get(kind_)
    return None if entry is None else Stored(entry["figures"], entry["versions"])


def write(path: Path, kind_: str, costs: Costs) -> None:
    """Store figures; those of other units and kinds stay."""
    stored = read(path, kind_)
    kept = stored.figures if stored else {}
    body = _read(path) | {kind_: {"versions": versions(), "figures": {**kept, **figures(costs)}}}
    path.parent.mkdir(parents=True, exist_ok=True)
    option = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS
    path.write_bytes(orjson.dumps(body, option=option) + b"\n")


def _read(path: Path) -> dict[str, Any]:
    body: dict[str, Any] = orjson.loads(path.read_bytes()) if path.exists() else {}
    return body


def changes(then: Figures, now: Figures) -> Iterator[Change]:
    """All figures that are in both."""
    for unit, stored in then.items():
        for figure, value in stored.items():
            if figure in now.get(unit, {}):
                yield Change(unit, figure, value, now[unit][figure])


def other_versions(then: Mapping[str, str]) -> list[str]:
    """Differences to the time when the figures were stored."""
    now = versions()
    return [
        f"{name} {then.get(name)} -> {now.get(name)}"
        for name in sorted(then.keys() | now.keys())
        if then.get(name) != now.get(name)
    ]
