"""What many connections bring at once is taken in turns."""

from types import FunctionType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.net.engine.engine_connection import MAX_WHOLE_CHUNK
from router.net.limits.read_limiter import (
    LARGE_READ_BYTES,
    LEAST_COST,
    MAX_HELD_BYTES,
    PIECE_BYTES,
    ReadLimiter,
)
from tests.net.client import request
from tests.net.engine import chunk, json_reply
from tests.net.harness import Harness, eventually
from tests.net.payloads import COMPLETIONS, DONE, STREAM, completion, token

READ = b"x" * 20_000
LIMIT = 4 * len(READ)


class Connection:
    """Reads whenever it may."""

    def __init__(self, limiter: ReadLimiter) -> None:
        self.limiter = limiter
        self.is_paused = False
        self.taken: list[int] = []
        """The reads, by their numbers."""
        self.came = 0

    def read(self, data: bytes = READ) -> None:
        """Something came."""
        assert not self.is_paused
        self.came += 1
        if self.limiter.may_take(data, self):
            self.taken.append(self.came)

    def wait_for_turn(self) -> None:
        assert not self.is_paused
        self.is_paused = True

    def read_on(self, data: bytes) -> None:
        assert self.is_paused
        self.is_paused = False
        self.taken.append(self.came)


@given(st.lists(st.lists(st.integers(0, 19), max_size=60), max_size=20))
def test_one_read_beyond_the_limit_between_refills(reads: list[list[int]]) -> None:
    limiter = ReadLimiter(LIMIT)
    connections = [Connection(limiter) for _ in range(20)]

    def taken() -> int:
        return sum(len(each.taken) for each in connections)

    for numbers in reads:
        before = taken()
        limiter.refill()
        for number in numbers:
            if not connections[number].is_paused:
                connections[number].read()
        assert (taken() - before) * len(READ) <= LIMIT + len(READ)
    for each in connections:
        waiting = [each.came] if each.is_paused else []
        assert each.taken + waiting == list(range(1, each.came + 1)), "each read once, in order"


def test_all_come_to_their_turn() -> None:
    limiter = ReadLimiter(LIMIT)
    connections = [Connection(limiter) for _ in range(50)]
    for _ in range(100):
        for each in connections:
            if not each.is_paused:
                each.read()
        limiter.refill()
    counts = [len(each.taken) for each in connections]
    assert max(counts) - min(counts) <= 2


def test_dense_bodies_are_charged_by_their_parse_time() -> None:
    limiter = ReadLimiter(LIMIT)
    one, other = Connection(limiter), Connection(limiter)
    one.read()
    limiter.took_pieces(3 * LIMIT // PIECE_BYTES)
    other.read()
    assert other.is_paused
    limiter.refill()
    limiter.refill()
    assert other.is_paused
    limiter.refill()
    assert not other.is_paused


def test_a_small_read_counts_with_the_cost_of_a_read() -> None:
    limiter = ReadLimiter(2 * LEAST_COST)
    connections = [Connection(limiter) for _ in range(6)]
    for each in connections:
        each.read(b"x")
    assert [each.is_paused for each in connections] == [False] * 2 + [True] * 4
    limiter.refill()
    assert [each.is_paused for each in connections] == [False] * 4 + [True] * 2


def test_waiting_bytes_are_bounded() -> None:
    limiter = ReadLimiter(1)
    large = b"x" * (MAX_HELD_BYTES // 2)
    connections = [Connection(limiter) for _ in range(4)]
    for each in connections:
        each.read(large)
    assert [each.is_paused for each in connections] == [False, True, True, False]
    for _ in range(MAX_HELD_BYTES):
        limiter.refill()
        if not connections[1].is_paused:
            break
        limiter._left = 0
    connections[1].read(large)
    assert connections[1].is_paused, "what has had its turn makes room"


async def test_bodies_that_wait_arrive_whole(harness: Harness) -> None:
    engine = await harness.engine()
    engine.answer_all(lambda call: call.send(json_reply({})))
    router = await harness.router(engine)
    router.router.handler.network.read_limiter._limit = 100_000
    clients = [await router.client() for _ in range(3)]
    for client in clients:
        await client.send(request(COMPLETIONS, completion("x" * 900_000)))
    for client in clients:
        assert (await client.answer()).status == 200


async def test_answers_that_wait_arrive_whole_and_in_order(harness: Harness) -> None:
    engine = await harness.engine()
    text = [token(f"{number} " + "x" * 3000) for number in range(300)]
    router = await harness.router(engine)
    limiter = router.router.connections.read_limiter
    limiter._limit = limiter._left = 50_000

    def answer(call: Any) -> None:
        if call.json.get("stream"):
            call.stream_whole(*text, DONE)
        else:
            call.send(json_reply({"text": "x" * 900_000}))

    engine.answer_all(answer)
    clients = [await router.client() for _ in range(4)]
    for number, client in enumerate(clients):
        asked = STREAM if number % 2 else completion()
        await client.send(request(COMPLETIONS, asked))
    for number, client in enumerate(clients):
        found = await client.answer()
        assert found.body == b"".join((*text, DONE)) if number % 2 else len(found.body) > 900_000


async def test_during_rotation_no_connection_is_read_out_of_turn(harness: Harness) -> None:
    engine, router = await harness.single()
    limiter = router.router.connections.read_limiter
    limiter._limit, limiter._left = 0, 0  # no turn ever comes
    client = await router.send(COMPLETIONS, STREAM)
    call = await engine.call()
    call.stream(token("first"))
    answer = await client.begin()
    await answer.until(token("first"))
    call.events(*[token("x" * 3000)] * 1000)
    await eventually(lambda: limiter._waiting)
    [connection] = router.pool(engine)._open
    connection.pause_reading()  # its client does not read either
    connection.resume_reading()
    assert connection._waits_for_turn
    assert limiter._held <= 1 << 18
    limiter._limit = 1 << 22
    call.end(DONE)
    await answer.rest()
    assert answer.body.count(b"\n\n") == 1002


async def test_tokens_have_no_turns_and_larger_events_have(harness: Harness) -> None:
    engine, router = await harness.single()
    limiter = router.router.connections.read_limiter
    client = await router.send(COMPLETIONS, STREAM)
    call = await engine.call()
    call.stream(token("first"))
    answer = await client.begin()
    await answer.until(token("first"))
    limiter._limit, limiter._left = 0, 0
    call.events(token("next"))
    await answer.until(token("next"))
    call.events(token("x" * MAX_WHOLE_CHUNK))
    await eventually(lambda: limiter._waiting)
    limiter._limit = 1 << 22
    call.end(DONE)
    await answer.rest()
    assert answer.body.endswith(token("x" * MAX_WHOLE_CHUNK) + DONE)


async def test_a_client_that_leaves_while_it_waits_is_noticed(harness: Harness) -> None:
    router = await harness.router(await harness.engine())
    limiter = router.router.handler.network.read_limiter
    budget = router.router.handler.network.byte_budget
    client = await router.client()
    limiter._left = 1
    await client.send(request(COMPLETIONS, b"x" * 300_000, (b"content-length", b"400000")))
    await eventually(lambda: budget.held >= LARGE_READ_BYTES)
    client.leave()
    await eventually(lambda: budget.held == 0)


async def test_an_engine_that_leaves_while_its_answer_waits_fails_it(harness: Harness) -> None:
    engine, router = await harness.single()
    limiter = router.router.connections.read_limiter
    client = await router.send(COMPLETIONS, completion())
    call = await engine.call()
    limiter._limit, limiter._left = 0, 0
    reply = json_reply({"text": "x" * 100_000})
    call.send(reply[:60_000])
    await eventually(lambda: limiter._waiting)
    call.close()
    limiter._limit = 1 << 22
    assert (await client.answer()).status == 502


async def test_refused_bodies_are_discarded_in_turns_too(harness: Harness) -> None:
    router = await harness.router(await harness.engine(), max_body_bytes=1024)
    limiter = router.router.handler.network.read_limiter
    client = await router.send(COMPLETIONS, b"", (b"content-length", b"9000000"))
    assert (await client.answer()).status == 413
    limiter._limit = limiter._left = 1
    [connection] = router.connections
    client.writer.write(b"x" * 9_000_000)
    await eventually(lambda: connection._waits_for_turn)


IS_COMPILED = not isinstance(ReadLimiter.may_take, FunctionType)


@pytest.mark.skipif(IS_COMPILED, reason="a compiled class has no interpreted subclasses")
@pytest.mark.parametrize(("number", "counts"), [(100_000, True), (1000, False)])
async def test_a_large_read_of_tiny_chunks_counts_with_its_cost(
    harness: Harness, number: int, counts: bool
) -> None:
    """Small reads have no turns, so they must not use up those of others."""
    router = await harness.router(await harness.engine())

    class Counting(ReadLimiter):
        """Records the pieces of each call."""

        pieces = 0

        def took_pieces(self, number: int) -> None:
            self.pieces += number
            super().took_pieces(number)

    router.router.handler.read_limiter = limiter = Counting(1 << 30)
    head = request(COMPLETIONS, b"", (b"transfer-encoding", b"chunked")).partition(b"\r\n\r\n")[0]
    client = await router.client()
    await client.send(head + b"\r\n\r\n" + chunk(b"x") * number)
    [connection] = router.connections
    await eventually(lambda: connection.active and connection.active.size == number)
    assert limiter.pieces > number // 2 if counts else limiter.pieces == 0
