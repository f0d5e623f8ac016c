"""One run of `validate --generator aiperf`: AIPerf's phases on our board, its result as ours."""

import time
from asyncio import Event
from collections.abc import Callable
from pathlib import Path

from benchmarks.gate.aiperf.driver import Job, drive
from benchmarks.gate.inputs.prompts import Prompts
from benchmarks.gate.options import Plan
from benchmarks.gate.output.live import Board
from benchmarks.gate.traffic.load import Progress
from benchmarks.gate.traffic.measured import Measured

# Subdirectory of the run: AIPerf's export and ours have the same file names.
FOLDER = "aiperf"


class _PhaseReporter:
    """Begins a phase on the board when AIPerf's first records of it come."""

    def __init__(self, plan: Plan, name: str, board: Board) -> None:
        self._totals = {"warm-up": plan.warmup, "measured": plan.requests}
        self._name, self._board = name, board

    def __call__(self, phase: str, progress: Progress) -> None:
        name = self._name if phase == "measured" else f"{self._name} {phase}"
        if self._board.phase != name:
            self._board.begin(name, self._totals[phase], time.monotonic())
        self._board.hear(0, progress)


async def measure(
    plan: Plan, name: str, folder: Path, board: Board, say: Callable[[str], None], stopped: Event
) -> tuple[Measured, Prompts]:
    """Warm-up and measured phase, without samples; of a stopped run what there is. Raises
    AiperfFailed, OSError."""
    job = Job(plan.profile, plan.address.url, plan.model, verify=plan.verify)
    say(f"{name}: AIPerf sends {job.warmup} + {job.requests} requests, {job.concurrency} at once")
    try:
        done = await drive(job, folder / FOLDER, _PhaseReporter(plan, name, board), stopped)
    finally:
        board.begin("", 0, 0.0)
    hot, made = done.offered, done.prompts
    errors = sum(each.error is not None for each in hot.seen)
    say(f"{name}: ended after {hot.end - hot.begin:.1f} s, {errors} errors")
    say(f"{len(made.texts)} prompts of {made.tokens} tokens, checksum {made.checksum[:16]}")
    return Measured(hot, (), done.warmup_requests, done.warmup_failed), made
