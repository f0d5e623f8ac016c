"""The load generator's processes: each serves its share of the streams of a phase.

Every phase hands out its numbers from one counter that all processes share. The parent sends
the phases, reads progress and results over pipes, and detects a dead process.
"""

import asyncio
import contextlib
import gc
import multiprocessing
import os
import resource
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext, SpawnProcess
from types import TracebackType
from typing import Any, Self

import uvloop

from benchmarks.gate.traffic.conversations import ConversationLoad
from benchmarks.gate.traffic.load import Load, Outcome, Phase, Progress, Target, Tickets
from benchmarks.system.signals import ENDING

# Seconds between a process's progress reports.
REPORT_S = 0.25
# All processes get a phase before it begins.
NOTICE_S = 0.05
STOP_S = 5.0


class SharedCounter:
    """Numbers for several processes."""

    def __init__(self, context: SpawnContext) -> None:
        self._value = context.Value("q", 0)

    def take(self) -> int:
        with self._value.get_lock():
            number = int(self._value.value)
            self._value.value = number + 1
        return number

    def reset(self) -> None:
        """Begin a phase."""
        self._value.value = 0


def serve(pipe: Connection, target: Target, tickets: Tickets) -> None:
    """A generator process: runs the phases that it receives, until the pipe closes."""
    # Signals reach the whole group (Ctrl-C, timeout(1)), but it is the gate's to say what happens.
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    gc.freeze()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(pipe, target, tickets))


async def _serve(pipe: Connection, target: Target, tickets: Tickets) -> None:
    loop = asyncio.get_running_loop()
    load = (
        Load(target, tickets)
        if target.template is None
        else ConversationLoad(target, target.template, tickets)
    )
    told: asyncio.Queue[Phase | None] = asyncio.Queue()
    timer = loop.call_later(0, int)

    def readable() -> None:
        try:
            message = pipe.recv()
        except EOFError:
            loop.remove_reader(pipe.fileno())
            message = None
        if not isinstance(message, Phase):  # stop, or the parent is gone
            load.stop()
        if message != STOP:
            told.put_nowait(message)

    def tell() -> None:
        nonlocal timer
        pipe.send(load.progress())
        timer = loop.call_later(REPORT_S, tell)

    _hear(pipe, readable)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while (phase := await told.get()) is not None:
            gc.disable()  # a collection would be a pause of all streams
            timer = loop.call_later(REPORT_S, tell)
            outcome = await load.run(phase)
            timer.cancel()
            gc.enable()
            pipe.send(load.progress())
            pipe.send(outcome)


STOP = "stop"


# Files that are open beside the streams' connections.
BESIDE = 128


def make_room(streams: int) -> None:
    """Let processes started from here open so many connections. Raises OSError where they may
    not."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < streams + BESIDE:
        raise OSError(f"{streams} streams need more open files than the {most} allowed (ulimit -n)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class GeneratorDied(Exception):
    """A generator process ended without an outcome."""


class Generators:
    """The processes. A context manager: leaving it ends them."""

    def __init__(self, target: Target, processes: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._counter = SharedCounter(context)
        self._pipes: list[Connection] = []
        self._processes: list[SpawnProcess] = []
        with _deaf():
            for _ in range(processes):
                ours, theirs = context.Pipe()
                arguments = (theirs, target, self._counter)
                process = context.Process(target=serve, args=arguments, daemon=True)
                process.start()
                theirs.close()
                self._pipes.append(ours)
                self._processes.append(process)

    @property
    def pids(self) -> list[int]:
        """Of the processes, in order."""
        return [each.pid for each in self._processes if each.pid is not None]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(STOP_S)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()

    async def run(self, phase: Phase, tell: Callable[[int, Progress], None]) -> list[Outcome]:
        """Run a phase; `tell` gets the number of a process and its progress."""
        self._counter.reset()
        for number, streams in enumerate(shares(phase.streams, len(self._pipes))):
            try:
                told = replace(phase, streams=streams, part=number, parts=len(self._pipes))
                self._pipes[number].send(told)
            except (BrokenPipeError, ConnectionResetError):
                raise _died(number) from None
        listening = [
            asyncio.ensure_future(self._listen(number, tell)) for number in range(len(self._pipes))
        ]
        try:
            return list(await asyncio.gather(*listening))
        finally:  # if one died, do not wait for the others
            for each in listening:
                each.cancel()
            await asyncio.gather(*listening, return_exceptions=True)

    def stop(self) -> None:
        """Every process cancels its requests in flight; `run` then returns partial results."""
        for pipe in self._pipes:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                pipe.send(STOP)

    async def _listen(self, number: int, tell: Callable[[int, Progress], None]) -> Outcome:
        loop, pipe = asyncio.get_running_loop(), self._pipes[number]
        outcome: asyncio.Future[Outcome] = loop.create_future()

        def readable() -> None:
            message: Any
            try:
                message = pipe.recv()
            except (EOFError, OSError):
                message = None
            if isinstance(message, Progress):
                tell(number, message)
                return
            loop.remove_reader(pipe.fileno())  # a closed pipe would stay readable forever
            if message is None:
                outcome.set_exception(_died(number))
            else:
                outcome.set_result(message)

        _hear(pipe, readable)
        try:
            return await outcome
        finally:
            loop.remove_reader(pipe.fileno())


def _hear(pipe: Connection, readable: Callable[[], None]) -> None:
    """Call this whenever the pipe has something to read. uvloop makes a pipe that it watches
    non-blocking, but an outcome is larger than what a pipe takes at once."""
    asyncio.get_running_loop().add_reader(pipe.fileno(), readable)
    os.set_blocking(pipe.fileno(), True)


def _died(number: int) -> GeneratorDied:
    return GeneratorDied(f"load generator process {number} ended unexpectedly")


def shares(total: int, parts: int) -> list[int]:
    """As equal as whole numbers can be."""
    return [total // parts + (number < total % parts) for number in range(parts)]


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """Processes started inside ignore these signals from their first line on. This process handles
    them afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
