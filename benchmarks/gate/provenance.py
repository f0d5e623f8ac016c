"""Who measured what, when, where and how: rows for the report, kept with the result.

Without them a figure cannot be reproduced or compared.
"""

import platform
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from benchmarks.command_line import program
from benchmarks.gate.aiperf import environment
from benchmarks.gate.analysis.records import Run
from benchmarks.gate.endpoint.workers import Workers
from benchmarks.gate.options import AIPERF, Plan
from benchmarks.system.machine import machine
from router import __version__

__all__ = ["command_line", "provenance"]

SECRET = re.compile(r"(--[\w-]*api-key[= ]+)('[^']*'|\S+)")
"""The router's own key may be among the options that `ab` passes on to it."""


def provenance(plan: Plan, run: Run, workers: Workers, version: str | None) -> dict[str, str]:
    """Name and text of each row. `version` is the endpoint's /version."""
    profile, here = plan.profile, machine()
    began = datetime.fromisoformat(run.started_at)
    local = began.astimezone()
    rows = {
        "endpoint": f"{run.url}, model {run.model}",
        "version": _version(workers, version),
        "workers": "none known" if workers.source is None else workers.line,
        **dict(plan.notes),
        "load": f"profile {profile.name}: {len(run.requests)} requests, {run.concurrency} streams, "
        f"{profile.input_tokens} tokens in, {profile.output_tokens} out, seed {profile.seed}"
        if plan.offer is None
        else plan.offer.line,
        "measured by": _generator(plan),
        "command": command_line(sys.argv[1:]),
        "began": f"{began:%Y-%m-%d %H:%M:%S} UTC; {local:%H:%M:%S %Z (UTC%z)} on the client",
        "client": f"{platform.node()}: {_machine(here)}, Python {platform.python_version()}",
    }
    return {name: text for name, text in rows.items() if text}


def command_line(arguments: Sequence[str]) -> str:
    """As it was typed, without secrets."""
    return SECRET.sub(r"\1***", f"{program()} {shlex.join(arguments)}")


def _version(workers: Workers, version: str | None) -> str:
    if version is None:
        return "the endpoint does not tell"
    return f"pd-router {version}" if workers.source == "router" else version


def _generator(plan: Plan) -> str:
    if plan.generator == AIPERF:
        return f"pd-bench {__version__}, load from AIPerf {environment.VERSION}"
    return f"pd-bench {__version__}, {plan.processes} load generator processes"


def _machine(here: Mapping[str, Any]) -> str:
    memory = here["memory_bytes"] / 2**30
    return f"{here['cores']} cores of {here['cpu']}, {memory:.0f} GiB, Linux {here['kernel']}"
