"""What a run has: its profile, engines, and a folder for its files; and routers and load tests."""

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from matplotlib.figure import Figure

from benchmarks.gate.ab import fleet
from benchmarks.gate.ab.options import RESULT
from benchmarks.h100.engines import Engine, Engines
from benchmarks.h100.profiles import Load, Profile
from benchmarks.system.processes import Process

__all__ = ["Stage"]

POLL_S = 0.1
Series = Mapping[str, Sequence[tuple[float, float]]]


@dataclass(frozen=True, slots=True)
class Stage:
    """One run's."""

    profile: Profile
    engines: Engines
    folder: Path

    @property
    def model(self) -> str:
        """The name of the model of all runs but `large`."""
        return self.profile.small.name

    def router(
        self, policy: str, engines: Sequence[Engine], name: str, *flags: str
    ) -> AbstractContextManager[str]:
        """The URL of a router in front of whole or decode engines. Raises StartError."""
        urls = [each.url for each in engines]
        return fleet.router(policy, urls, flags, self.folder / f"router-{name}.log")

    def compare(self, engines: Sequence[Engine], load: Load) -> dict[str, Any]:
        """The gate's load under each policy: what `ab.json` says of them. Its report and pictures
        are kept. Raises RuntimeError."""
        profile, out = self.profile, self.folder / f"streams-{load.streams}"
        command = [
            *(sys.executable, "-m", "benchmarks", "ab", "--no-live", "--rounds", "1"),
            *("--policies", ",".join(load.policies), "--model", self.model),
            *(word for each in engines for word in ("--engine", each.url)),
            *("--concurrency", str(load.streams), "--warmup", str(load.streams // 4)),
            *("--duration", str(load.seconds), "--prompt-tokens", str(profile.prompt_tokens)),
            *("--output-tokens", str(profile.answer_tokens), "--extra-inputs", "ignore_eos:true"),
            *("--throughput", ">= 1", "--ttft-p99", "<= 2000", "--out", str(out)),
        ]
        with Process(command, self.folder / f"{out.name}.log") as process:
            while not process.ended:
                time.sleep(POLL_S)
            tail = process.log_tail()
        if not (out / RESULT).exists():
            raise RuntimeError(tail)
        found: dict[str, Any] = orjson.loads((out / RESULT).read_bytes())
        return {name: found[name] for name in ("summary", "runs", "broken")}

    def draw(self, name: str, x: str, y: str, series: Series) -> None:
        """A picture of lines over a logarithmic axis."""
        figure = Figure(figsize=(6.0, 3.6), dpi=110, layout="constrained")
        axes: Any = figure.add_subplot()
        for label, points in series.items():
            axes.plot(*zip(*points, strict=True), "o-", label=label)
        axes.set_xscale("log", base=2)
        axes.set_ylim(bottom=0)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.grid(visible=True, alpha=0.25)
        axes.legend()
        figure.savefig(self.folder / f"{name}.png")
