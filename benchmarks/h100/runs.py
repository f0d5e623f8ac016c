"""`h100 run`: models are written, the runs made, and each one's files kept as one archive.

Into the results folder go NAME.tar.gz for each run, and summary.json, both as soon as they exist.
"""

import json
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from benchmarks.h100 import balance, killed, schedule, speed, transfer
from benchmarks.h100.engines import Engines
from benchmarks.h100.profiles import Profile
from benchmarks.h100.schedule import Outcome
from benchmarks.h100.stage import Stage
from benchmarks.system.machine import machine, revision, versions

__all__ = ["Places", "carry_out", "gpu"]

RUN: Mapping[str, Callable[[Stage], Mapping[str, Any]]] = {
    "smoke": speed.smoke,
    "pool": balance.pool,
    "incident": balance.incident,
    "killed": killed.killed,
    "transfer": transfer.transfer,
    "large": speed.large,
}
MAKE_MODEL = Path(__file__).with_name("make_model.py")
IMPORTS = "import vllm.entrypoints.openai.api_server, router.commands.serve"
"""What engines and routers import. A missing package shows before an engine is waited for."""
ASK_GPU = (
    "nvidia-smi",
    "--query-gpu=name,driver_version,memory.total,memory.used",
    "--format=csv,noheader",
)


@dataclass(frozen=True, slots=True)
class Places:
    """Folders: of the results, of models and logs (cleared), and of the packed parts."""

    out: Path
    work: Path
    parts: Path | None


def carry_out(profile: Profile, names: Sequence[str], places: Places, seconds: float) -> int:
    """Make the runs in at most `seconds`. Returns the exit status: 0 if all are done."""
    begun = time.monotonic()
    shutil.rmtree(places.work, ignore_errors=True)
    logs, results, models = (places.work / name for name in ("logs", "results", "models"))
    for folder in (places.out, logs, results, models):
        folder.mkdir(parents=True, exist_ok=True)
    about = _about(profile, places)
    _prepare(profile, names, models)
    about["models_s"] = round(time.monotonic() - begun, 1)
    outcomes: list[Outcome] = []

    with Engines(profile, models, logs) as engines:

        def keep(outcome: Outcome) -> None:
            outcomes.append(outcome)
            print(f"{outcome.name}: {outcome.outcome} ({outcome.seconds} s)", flush=True)
            folder = results / outcome.name
            folder.mkdir(exist_ok=True)
            shutil.copytree(logs, folder / "logs", dirs_exist_ok=True)
            (folder / "result.json").write_bytes(_json(asdict(outcome)))
            with tarfile.open(places.out / f"{outcome.name}.tar.gz", "w:gz") as archive:
                archive.add(folder, outcome.name)
            about["starts"] = engines.starts
            about["runs"] = [asdict(each) for each in outcomes]
            about["seconds"] = round(time.monotonic() - begun, 1)
            (places.out / "summary.json").write_bytes(_json(about))

        runs = [(name, partial(_run, profile, engines, results, name)) for name in names]
        left = seconds - (time.monotonic() - begun)
        schedule.carry_out(runs, profile.limits, left, keep)
    return 0 if all(each.outcome == schedule.DONE for each in outcomes) else 1


def _run(profile: Profile, engines: Engines, results: Path, name: str) -> Mapping[str, Any]:
    folder = results / name
    folder.mkdir()
    return RUN[name](Stage(profile, engines, folder))


def _prepare(profile: Profile, names: Sequence[str], models: Path) -> None:
    """Make the models, and import what the runs need, all at the same time. Raises
    CalledProcessError."""
    shapes = [profile.small]
    if profile.large is not None and "large" in names:
        shapes.append(profile.large)
    scripts = [
        (str(MAKE_MODEL), str(models / shape.name), json.dumps(asdict(shape))) for shape in shapes
    ]
    begun = [subprocess.Popen([sys.executable, *words]) for words in (("-c", IMPORTS), *scripts)]
    for each in begun:
        if each.wait():
            raise subprocess.CalledProcessError(each.returncode, each.args)


def _about(profile: Profile, places: Places) -> dict[str, Any]:
    """What the figures were made on and with. A copy of the checkout may have no repository: the
    manifest of the parts has its revision."""
    manifest = None
    if places.parts is not None:
        manifest = orjson.loads((places.parts / "manifest.json").read_bytes())
    return {
        "started_at": datetime.now(UTC).isoformat(),
        "profile": profile.name,
        "command": sys.argv[1:],
        "machine": machine(),
        "gpu": gpu(),
        "versions": versions(),
        "revision": revision(),
        "packed": manifest,
    }


def gpu() -> list[str]:
    """A line for each GPU; empty without one."""
    if shutil.which(ASK_GPU[0]) is None:
        return []
    done = subprocess.run(ASK_GPU, capture_output=True, text=True, check=False)
    return done.stdout.strip().splitlines()


def _json(found: Mapping[str, Any]) -> bytes:
    return orjson.dumps(found, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS)
