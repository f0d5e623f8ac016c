import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from benchmarks.gate.traffic.load import Counter, Load, Phase, Target, most_in_flight
from benchmarks.streaming.client import Seen
from tests.benchmarks.gate.listening import listening

PIECE = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (
    2 * len(PIECE) + len(DONE),
    2 * PIECE + DONE,
)
HEAD = b"POST /v1 HTTP/1.1\r\nx-request-id: %b\r\nx-a: %b\r\nx-b: %b\r\ncontent-length: %d\r\n\r\n"
BODIES = (b"one", b"two", b"three")


class Server:
    """Answers after so many requests; without `together`, at once."""

    def __init__(self, together: int = 1, answer: bytes = ANSWER) -> None:
        self.bodies: list[bytes] = []
        self.ids: list[bytes] = []
        self.connections = 0
        self.full = asyncio.Event()
        self._came: asyncio.Queue[None] = asyncio.Queue()
        self._together, self._answer = together, answer

    async def asked(self, requests: int) -> None:
        """Wait until so many more are there."""
        for _ in range(requests):
            await self._came.get()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = dict(line.split(b": ") for line in head.split(b"\r\n")[1:-2])
                self.ids.append(lines[b"x-request-id"])
                self.bodies.append(await reader.readexactly(int(lines[b"content-length"])))
                self._came.put_nowait(None)
                if len(self.bodies) >= self._together:
                    self.full.set()
                await self.full.wait()
                writer.write(self._answer)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def served(server: Server) -> AsyncIterator[Target]:
    async with listening(server.serve) as port:
        yield Target("127.0.0.1", port, False, True, HEAD, BODIES, 30.0)


async def test_all_streams_ask_at_once_and_then_one_for_each_that_ends() -> None:
    server = Server(together=4)
    async with served(server) as target:
        outcome = await Load(target, Counter()).run(Phase(4, 10, 0))
    assert server.connections == 4
    assert [each.error for each in outcome.seen] == [None] * 10
    assert [each.number for each in outcome.seen] == list(range(10))
    assert most_in_flight(outcome.seen, time.monotonic()) == 4
    assert len(set(server.ids)) == 10
    assert not outcome.stopped


async def test_a_timed_phase_continues_after_its_last_request() -> None:
    async with served(Server()) as target:
        begin = time.monotonic()
        outcome = await Load(target, Counter()).run(Phase(2, 3, 0, begin, min_seconds=0.2))
        assert time.monotonic() >= begin + 0.2
    assert len(outcome.seen) >= 3
    assert all(each.sent < begin + 0.2 for each in outcome.seen[3:])
    assert [each.prompt for each in outcome.seen[:4]] == [0, 1, 2, 0][: len(outcome.seen)]


async def test_prompts_are_cycled_through_from_the_offset() -> None:
    server = Server()
    async with served(server) as target:
        outcome = await Load(target, Counter()).run(Phase(1, 5, 2))
    assert server.bodies == [b"three", b"one", b"two", b"three", b"one"]
    assert [each.prompt for each in outcome.seen] == [2, 0, 1, 2, 0]


async def test_phases_follow_each_other_on_the_same_connections() -> None:
    server, counter = Server(together=2), Counter()
    async with served(server) as target:
        load = Load(target, counter)
        await load.run(Phase(2, 2, 0))
        counter.value = 0
        outcome = await load.run(Phase(2, 4, 0))
    assert len(outcome.seen) == 4
    assert server.connections == 2


async def test_progress_is_the_difference_since_the_last_report() -> None:
    async with served(Server()) as target:
        load = Load(target, Counter())
        await load.run(Phase(1, 3, 0))
    told = load.progress()
    assert (told.ended, told.errors, told.chunks, len(told.firsts)) == (3, 0, 6, 3)
    assert told.in_flight == 0
    assert load.progress().ended == 0


async def test_failures_are_followed_up_like_answers() -> None:
    refusal = b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n"
    async with served(Server(answer=refusal)) as target:
        load = Load(target, Counter())
        outcome = await load.run(Phase(2, 6, 0))
    assert [each.error for each in outcome.seen] == ["status 500"] * 6
    assert load.progress().errors == 6


async def test_an_absent_server_fails_every_request(closed_port: int) -> None:
    target = Target("127.0.0.1", closed_port, False, True, HEAD, BODIES, 30.0)
    outcome = await Load(target, Counter()).run(Phase(2, 5, 0))
    assert {each.error for each in outcome.seen} == {"cannot connect: ConnectionRefusedError"}
    assert len(outcome.seen) == 5
    assert most_in_flight(outcome.seen, time.monotonic()) == 0


async def test_stopping_returns_partial_results() -> None:
    server = Server(together=3)
    server.full.clear()
    async with served(server) as target:
        load = Load(target, Counter())
        running = asyncio.ensure_future(load.run(Phase(2, 9, 0)))
        await server.asked(2)
        load.stop()
        outcome = await running
        assert (await load.run(Phase(2, 9, 0))).seen == []
        server.full.set()
    assert outcome.stopped
    assert [(each.ended, each.error) for each in outcome.seen] == [(None, None)] * 2


async def test_more_streams_than_requests_are_idle() -> None:
    server = Server(together=2)
    async with served(server) as target:
        outcome = await Load(target, Counter()).run(Phase(8, 2, 0))
    assert len(outcome.seen) == 2
    assert server.connections == 2


async def test_a_phase_of_nothing_is_over_at_once() -> None:
    async with served(Server()) as target:
        outcome = await Load(target, Counter()).run(Phase(0, 0, 0))
    assert outcome.seen == []
    assert outcome.lag_p99_ms == 0.0


def seen(written: float | None, ended: float | None) -> Seen:
    return Seen(0, 0, 0.0, written=written, ended=ended)


@pytest.mark.parametrize(
    ("requests", "most"),
    [
        ([], 0),
        ([seen(1, 2), seen(2, 3)], 1),
        ([seen(1, 3), seen(2, 4), seen(5, 6)], 2),
        ([seen(1, None), seen(2, None)], 2),
        ([seen(None, 2), seen(1, 3)], 1),
        ([seen(0.0, 2), seen(0.0, 1)], 2),
    ],
)
def test_in_flight_counts_written_requests_until_their_end(requests: list[Seen], most: int) -> None:
    assert most_in_flight(requests, 9.0) == most
