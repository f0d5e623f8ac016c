import asyncio
import os
import signal
from array import array

import pytest

from benchmarks.gate.traffic.load import Phase, Progress
from benchmarks.gate.traffic.processes import GeneratorDied, Generators, shares
from tests.benchmarks.gate.traffic.test_load import DONE, PIECE, Server, served

NOTHING = Phase(0, 0, 0)


class Told:
    """Progress of a phase."""

    def __init__(self) -> None:
        self.ended = self.errors = self.chunks = 0
        self.firsts = array("d")
        self.processes: set[int] = set()

    def __call__(self, number: int, progress: Progress) -> None:
        self.processes.add(number)
        self.ended += progress.ended
        self.errors += progress.errors
        self.chunks += progress.chunks
        self.firsts += progress.firsts


async def test_processes_are_one_closed_loop() -> None:
    server, told = Server(together=5), Told()
    async with served(server) as target:
        with Generators(target, 2) as generators:
            await generators.run(NOTHING, told)
            outcomes = await generators.run(Phase(5, 40, 0), told)
            server.full.clear()
            again = await generators.run(Phase(5, 0, 0), told)
    numbers = sorted(each.number for outcome in outcomes for each in outcome.seen)
    assert numbers == list(range(40))
    assert (told.ended, told.errors, told.chunks, len(told.firsts)) == (40, 0, 80, 40)
    assert told.processes == {0, 1}
    assert [outcome.seen for outcome in again] == [[], []]
    assert server.connections == 5


async def test_outcomes_may_be_larger_than_a_pipe() -> None:
    long = 500 * PIECE + DONE
    server = Server(answer=b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(long), long))
    async with served(server) as target:
        with Generators(target, 2) as generators:
            outcomes = await generators.run(Phase(8, 200, 0), Told())
    assert sum(each.chunks for outcome in outcomes for each in outcome.seen) == 100_000


async def test_stopping_returns_partial_results() -> None:
    server, told = Server(together=99), Told()
    async with served(server) as target:
        with Generators(target, 2) as generators:
            running = asyncio.ensure_future(generators.run(Phase(4, 40, 0), told))
            await server.asked(4)
            # Ctrl-C reaches the whole group: the processes leave it to us.
            for process in generators.pids:
                os.kill(process, signal.SIGINT)
                os.kill(process, signal.SIGTERM)
                os.kill(process, signal.SIGHUP)
            generators.stop()
            outcomes = await running
            server.full.set()
    assert [outcome.stopped for outcome in outcomes] == [True, True]
    assert sum(len(outcome.seen) for outcome in outcomes) == 4


async def test_a_dead_process_is_reported_during_the_run_and_after() -> None:
    server, told = Server(together=99), Told()
    async with served(server) as target:
        with Generators(target, 2) as generators:
            running = asyncio.ensure_future(generators.run(Phase(4, 40, 0), told))
            await server.asked(4)
            os.kill(generators.pids[1], signal.SIGKILL)
            with pytest.raises(GeneratorDied, match="process 1 ended"):
                await running
            with pytest.raises(GeneratorDied, match="process 1 ended"):
                await generators.run(NOTHING, told)
            server.full.set()


def test_streams_are_shared_out_evenly() -> None:
    assert shares(10, 4) == [3, 3, 2, 2]
    assert shares(1, 2) == [1, 0]
    assert sum(shares(2048, 7)) == 2048
