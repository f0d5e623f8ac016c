"""What many clients send at once is read in turns."""

from hypothesis import given
from hypothesis import strategies as st

from router.net.read_limiter import READ_BYTES, ReadLimiter
from tests.net.client import request
from tests.net.engine import json_reply
from tests.net.harness import Harness, eventually
from tests.net.payloads import COMPLETIONS, completion

LIMIT = 4 * READ_BYTES


class Connection:
    """Reads whenever it may."""

    def __init__(self) -> None:
        self.is_paused = False
        self.read = 0

    def wait_for_turn(self) -> None:
        assert not self.is_paused
        self.is_paused = True

    def read_on(self) -> None:
        assert self.is_paused
        self.is_paused = False


@given(st.lists(st.lists(st.integers(0, 19), max_size=60), max_size=20))
def test_between_two_beats_little_more_than_the_limit_is_read(beats: list[list[int]]) -> None:
    limiter = ReadLimiter(LIMIT)
    connections = [Connection() for _ in range(20)]
    for each in connections:  # a first read of each, before anything is paused
        limiter.took(READ_BYTES, each)
    for numbers in beats:
        limiter.refill()
        read = 0
        for number in numbers:
            if not connections[number].is_paused:
                read += READ_BYTES
                limiter.took(READ_BYTES, connections[number])
        running = sum(not each.is_paused for each in connections)
        assert read <= LIMIT + READ_BYTES * (running + 5)


def test_all_come_to_their_turn() -> None:
    limiter = ReadLimiter(LIMIT)
    connections = [Connection() for _ in range(50)]
    for each in connections:
        limiter.took(READ_BYTES, each)
    for _ in range(100):
        limiter.refill()
        for each in connections:
            if not each.is_paused:
                each.read += 1
                limiter.took(READ_BYTES, each)
    counts = [each.read for each in connections]
    assert min(counts) > 0


async def test_bodies_that_wait_arrive_whole(harness: Harness) -> None:
    engine = await harness.engine()
    engine.answer_all(lambda call: call.send(json_reply({})))
    router = await harness.router(engine)
    router.router.handler.network.read_limiter._limit = 1
    clients = [await router.client() for _ in range(3)]
    for client in clients:
        await client.send(request(COMPLETIONS, completion("x" * 900_000)))
    for client in clients:
        assert (await client.answer()).status == 200


async def test_a_client_that_leaves_while_it_waits_is_noticed(harness: Harness) -> None:
    router = await harness.router(await harness.engine())
    limiter = router.router.handler.network.read_limiter
    limiter._limit = limiter._left = 1
    client = await router.client()
    await client.send(request(COMPLETIONS, b"x" * 300_000, (b"content-length", b"400000")))
    await eventually(lambda: router.router.handler.network.byte_budget.held >= 300_000)
    client.leave()
    await eventually(lambda: router.router.handler.network.byte_budget.held == 0)


async def test_what_is_refused_is_discarded_in_turns_too(harness: Harness) -> None:
    router = await harness.router(await harness.engine(), max_body_bytes=1024)
    limiter = router.router.handler.network.read_limiter
    client = await router.client()
    await client.send(request(COMPLETIONS, b"", (b"content-length", b"9000000")))
    assert (await client.answer()).status == 413
    limiter._limit = limiter._left = 1
    [connection] = router.connections
    client.writer.write(b"x" * 9_000_000)
    await eventually(lambda: connection._waits_for_turn)
