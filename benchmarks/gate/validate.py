"""`validate`: readiness, a warm-up wave, the measured phase, the verdict.

Joins the parts and prints progress. An error ends with status 3 and one line.
"""

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import uvloop
from rich.console import Console

from benchmarks.gate import judge, options
from benchmarks.gate.aiperf import aiperf_run
from benchmarks.gate.analysis.records import Diagnosis, Kind
from benchmarks.gate.analysis.verdict import Exit, Verdict
from benchmarks.gate.endpoint import readiness
from benchmarks.gate.endpoint.control_client import ControlClient, control_client
from benchmarks.gate.endpoint.readiness import NotReady
from benchmarks.gate.endpoint.target import headers, target
from benchmarks.gate.endpoint.workers import Sampler, discover, unusable
from benchmarks.gate.inputs import datasets
from benchmarks.gate.inputs.datasets import SYNTHETIC
from benchmarks.gate.inputs.exact_length import exact
from benchmarks.gate.inputs.prompts import Count, Prompts, build, counted
from benchmarks.gate.options import AIPERF, Plan
from benchmarks.gate.output import artifacts, export, results
from benchmarks.gate.output.artifacts import Inputs, RunArtifacts
from benchmarks.gate.output.live import Board, Live
from benchmarks.gate.traffic.load import Phase, Target
from benchmarks.gate.traffic.measured import Measured, Offered, offer
from benchmarks.gate.traffic.offer import Offer
from benchmarks.gate.traffic.processes import GeneratorDied, Generators, make_room
from benchmarks.system import signals
from router import __version__

AGENT = f"pd-bench/{__version__}"

T = TypeVar("T")
# From the number of a run, its name and the prompts to the measurement with its prompts.
Measure = Callable[[int, str, Prompts], Awaitable[tuple[Measured, Prompts]]]
Beside = Callable[[], Coroutine[Any, Any, None]]


class Interrupted(Exception):
    """The run was interrupted; the text names the step."""


def main(argv: Sequence[str]) -> int:
    """Run it and return the exit status."""
    at = datetime.now(UTC)
    plan = options.read(argv, at)
    # Wide enough that no line is cut when the output goes to a file.
    console = Console() if sys.stdout.isatty() else Console(width=160)
    kept: list[RunArtifacts] = []
    try:
        make_room(plan.concurrency)
        plan.out.mkdir(parents=True, exist_ok=True)
        wrong = carried_out(plan, console, kept)
        if wrong is not None and not kept:
            return _nothing(plan, wrong, at)
        code = _finished(plan, kept, None if wrong is None else str(wrong))
    except KeyboardInterrupt:
        return _broken("interrupted while results were written")
    except OSError as error:
        return _broken(str(error))
    return code if wrong is None else _broken(str(wrong))


async def _nothing_else() -> None:
    """Beside the measured phase, usually."""


def carried_out(
    plan: Plan, console: Console, kept: list[RunArtifacts], beside: Beside = _nothing_else
) -> Exception | None:
    """Fill `kept`; what ended it early is returned. `beside` begins with each measured phase, and
    is cancelled with it. Raises OSError."""
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_Validation(plan, console, kept, beside).carry_out())
    except (NotReady, GeneratorDied, Interrupted) as error:
        return error
    except KeyboardInterrupt:
        return Interrupted("interrupted")
    return None


def _broken(text: str) -> int:
    print(f"error: {text}", file=sys.stderr)
    return int(Exit.VOID)


def _nothing(plan: Plan, wrong: Exception, at: datetime) -> int:
    """No figures: a machine-readable report with the reason."""
    verdict = Verdict(passed=False, lines=(), failures=(), void_reason=str(wrong))
    missing = isinstance(wrong, NotReady) and wrong.served
    why = [Diagnosis(Kind.UNDER_PROVISIONED, None, str(wrong))] if missing else []
    lasted = (datetime.now(UTC) - at).total_seconds()
    document = export.ctrf([verdict], [at], [lasted], __version__, why)
    (plan.out / export.CTRF).write_bytes(results.to_json(document))
    return _broken(str(wrong))


def _finished(plan: Plan, kept: list[RunArtifacts], broken: str | None) -> int:
    """Say the verdict, draw, and return the exit status."""
    overall = judge.series_of([each.evaluation for each in kept], plan.must_pass, broken)
    judge.show([each.evaluation for each in kept], overall)
    for each in kept:
        prefix = f"{each.evaluation.result.name}: " if len(kept) > 1 else ""
        for line in each.lines:
            print(f"{prefix}{line}")
    folders = [folder_of(plan, number) for number in range(len(kept))]
    print(f"written to {artifacts.draw(plan, kept, folders, broken)}", flush=True)
    if plan.sentinel:
        for each in kept:
            print(export.framed(each.document), end="", flush=True)
    return int(overall.exit_code)


def folder_of(plan: Plan, number: int) -> Path:
    """Where the files of one run go."""
    return plan.out if plan.runs == 1 else plan.out / f"run-{number + 1}"


class _Validation:
    """One plan being carried out."""

    def __init__(
        self, plan: Plan, console: Console, kept: list[RunArtifacts], beside: Beside
    ) -> None:
        self._plan, self._kept, self._beside = plan, kept, beside
        self._board = Board()
        self._live = Live(self._board, console, drawn=plan.live)
        self._stopped = asyncio.Event()
        self._doing = "the endpoint got ready"

    async def carry_out(self) -> None:
        """All runs. Raises NotReady, GeneratorDied, Interrupted, OSError."""
        plan = self._plan
        secrets = headers(AGENT, plan.key)
        with self._listening():
            async with (
                self._live,
                control_client(plan.address.url, secrets, verify=plan.verify) as asked,
            ):
                inputs = await self._unless_stopped(self._prepared(asked))
                sampler = Sampler(asked, inputs.workers, plan.sample_s)
                self._board.busiest = sampler.busiest
                if plan.generator == AIPERF:
                    async with sampler:
                        await self._runs(self._driven, sampler, inputs)
                    return
                with Generators(self._target(inputs.prompts), plan.processes) as generators:
                    await offer(generators, Phase(0, 0, 0), self._board.hear, self._stopped)
                    async with sampler:
                        measure = partial(self._measured, generators)
                        await self._runs(measure, sampler, inputs)

    def _target(self, prompts: Prompts) -> Target:
        plan = self._plan
        found = target(
            plan.address,
            plan.model,
            prompts.texts,
            plan.profile,
            user_agent=AGENT,
            key=plan.key,
            verify=plan.verify,
        )
        return found if plan.offer is None else plan.offer.target(found)

    async def _prepared(self, asked: ControlClient) -> Inputs:
        plan = self._plan

        async def missing() -> str | None:
            return await unusable(asked, plan.workers, plan.workers_expected)

        self._live.say(f"waiting for {plan.model} at {plan.address.url}")
        await readiness.wait(asked, plan.model, missing, plan.readiness, self._live.say)
        workers = await discover(asked, plan.workers)
        self._live.say(f"ready: {workers.line}")
        version = await readiness.version(asked)
        self._doing = "prompts were made"
        if self._plan.generator == AIPERF:
            return Inputs(Prompts((), self._plan.profile.input_tokens), workers, version)
        return Inputs(await self._prompts(asked), workers, version)

    async def _prompts(self, asked: ControlClient) -> Prompts:
        plan = self._plan
        count = partial(readiness.count, asked, plan.model)
        if plan.offer is not None:
            await self._conversations(plan.offer, count)
            return Prompts((), plan.profile.input_tokens)
        made = build(plan.prompts, plan.profile.input_tokens, plan.profile.seed)
        made, note = await exact(made, len(made.texts), partial(counted, count=count))
        self._live.say(
            f"{len(made.texts)} prompts of {made.tokens} tokens ({note}), each sent "
            f"{'at least ' if plan.profile.min_seconds else ''}"
            f"{artifacts.reuse(plan, made, plan.requests):.1f} times, checksum {made.checksum[:16]}"
        )
        return made

    async def _conversations(self, offer: Offer, count: Count) -> None:
        """Data from files are sent unchanged."""
        made = offer.template.dataset
        if made.name != SYNTHETIC:
            self._live.say(offer.line)
            return
        texts = sum(len(each.turns) for each in made.conversations)
        made, note = await exact(made, texts, partial(datasets.counted, count=count))
        offer = replace(offer, template=replace(offer.template, dataset=made))
        self._plan = replace(self._plan, offer=offer)
        self._live.say(f"{offer.line}; tokens {note}")

    async def _runs(self, measure: Measure, sampler: Sampler, inputs: Inputs) -> None:
        plan = self._plan
        for number in range(plan.runs):
            name = f"run-{number + 1}" if plan.runs > 1 else plan.label or plan.profile.name
            measured, prompts = await measure(number, name, inputs.prompts)
            hot = measured.offered
            measured = replace(measured, samples=sampler.between(hot.begin, hot.end))
            self._keep(
                number, artifacts.kept(plan, name, measured, replace(inputs, prompts=prompts))
            )
            if hot.interrupted or self._stopped.is_set():
                raise Interrupted(f"interrupted: what there is of {name} was written")

    async def _measured(
        self, generators: Generators, number: int, name: str, prompts: Prompts
    ) -> tuple[Measured, Prompts]:
        plan = self._plan
        first, second = plan.phases(number)
        warm = await self._offer(generators, f"{name} warm-up", first, first.requests)
        if warm.interrupted or self._stopped.is_set():
            raise Interrupted(f"interrupted during the warm-up of {name}")
        readiness.check_warm_up((each.status, each.error) for each in warm.seen)
        total = plan.requests if plan.offer is None else plan.offer.requests
        beside = asyncio.ensure_future(self._beside())
        try:
            hot = await self._offer(generators, name, second, total)
        finally:
            beside.cancel()
            await asyncio.gather(beside, return_exceptions=True)
        failed = sum(each.error is not None for each in warm.seen)
        return Measured(hot, (), len(warm.seen), failed), prompts

    async def _driven(self, number: int, name: str, prompts: Prompts) -> tuple[Measured, Prompts]:
        """AIPerf makes up its own prompts."""
        folder = folder_of(self._plan, number)
        measured, prompts = await aiperf_run.measure(
            self._plan, name, folder, self._board, self._live.say, self._stopped
        )
        if not measured.offered.seen:
            raise Interrupted(f"interrupted before anything of {name} was measured")
        return measured, prompts

    async def _offer(
        self, generators: Generators, name: str, phase: Phase, total: int | None
    ) -> Offered:
        """`total` requests, None where the clock decides."""
        streams = phase.streams if total is None else min(phase.streams, total)
        how = "when due" if phase.pace.open_loop else f"{streams} at once"
        number = f"for {phase.pace.duration:g} s" if total is None else f"{total} requests"
        if phase.min_seconds:
            number += f" or more, for {phase.min_seconds:g} s at least"
        self._live.say(f"{name}: {number}, {how}")
        self._board.begin(name, total or 0, time.monotonic())
        done = await offer(generators, phase, self._board.hear, self._stopped)
        errors = sum(each.error is not None for each in done.seen)
        self._live.say(f"{name}: ended after {done.end - done.begin:.1f} s, {errors} errors")
        self._board.begin("", 0, 0.0)
        return done

    def _keep(self, number: int, each: RunArtifacts) -> None:
        """At once, because later steps may fail."""
        self._kept.append(each)
        artifacts.write(folder_of(self._plan, number), each)

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of some work. Raises Interrupted where it is stopped before."""
        task = asyncio.ensure_future(work)
        stopping = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise Interrupted(f"interrupted before {self._doing}: nothing was measured")
            return task.result()
        finally:
            for each in (task, stopping):
                each.cancel()
            await asyncio.gather(task, stopping, return_exceptions=True)

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        """The first signal stops in good order, a second one at once."""
        loop, heard = asyncio.get_running_loop(), signals.heard()

        def stop_listening() -> None:
            for number in heard:
                loop.remove_signal_handler(number)
                signal.signal(number, signal.default_int_handler)

        def stop() -> None:
            self._stopped.set()
            stop_listening()
            # Last: after a hang-up there is no terminal to say it on.
            self._live.say("stopping: what there is will be written; once more ends at once")

        for number in heard:
            loop.add_signal_handler(number, stop)
        try:
            yield
        finally:
            stop_listening()
