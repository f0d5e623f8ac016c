"""No answer is wrong and no state remains, for any behaviour of clients and engines.

CHAOS_REQUESTS sets the number of requests; `make test` keeps it small.
"""

import asyncio
import gc
import gzip
import logging
import os
import tracemalloc
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Any

import orjson
import pytest

from tests.leaks import leaks_params
from tests.net.client import Answer, Client, Truncated, request
from tests.net.engine import Call, Connection, ScriptedEngine, chunk, json_reply, sse_head
from tests.net.harness import Harness, Running, eventually
from tests.net.payloads import CHAT, COMPLETIONS, DONE, EMBEDDINGS, KV, event, token

REQUESTS = int(os.environ.get("CHAOS_REQUESTS", "600"))
AT_ONCE = 40
PATIENCE = 3.0
"""Seconds of the router with engines that say nothing: a machine on which all is slow gives right
answers within."""
LONG = "a long prompt " * 400
THRESHOLD = 1000
KEPT_BYTES = 400_000
"""What may stay in memory after a storm: none of it may grow with the number of requests."""

# Engines. Each script answers one call, in its own way; `mark` must be in every answer.


async def _good(call: Call, mark: str, chance: Random) -> None:
    if call.json.get("stream"):
        call.stream()
        for number in range(chance.randrange(8)):
            call.events(token(f"{mark} {number}"))
            await asyncio.sleep(chance.choice((0, 0, 0.001)))
        if call.connection.closed.is_set():
            return
        call.end(token(mark, kv_transfer_params=KV), DONE)
    else:
        await asyncio.sleep(chance.choice((0, 0, 0.003)))
        if not call.connection.closed.is_set():
            leak = {} if call.target == EMBEDDINGS.encode() else {"kv_transfer_params": KV}
            call.send(json_reply({"choices": [{"text": mark}], **leak}))


async def _good_and_close(call: Call, mark: str, _: Random) -> None:
    call.send(json_reply({"choices": [{"text": mark}]}, 200, b"connection: close"))
    call.close()


async def _good_and_garbage(call: Call, mark: str, _: Random) -> None:
    call.send(json_reply({"choices": [{"text": mark}]}), b"and garbage behind it")


async def _another_answer(call: Call, mark: str, _: Random) -> None:
    call.send(json_reply({"choices": [{"text": mark}]}) * 2)


async def _trailers(call: Call, mark: str, _: Random) -> None:
    body = orjson.dumps({"choices": [{"text": mark}]})
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    call.send(head, chunk(body), b"0\r\nx-trailer: a\r\n\r\n")


def _status(status: int) -> "Script":
    async def script(call: Call, mark: str, _: Random) -> None:
        call.send(json_reply({"error": {"message": mark, "code": status}}, status))

    return script


async def _reset(call: Call, _: str, __: Random) -> None:
    call.reset()


async def _close(call: Call, _: str, __: Random) -> None:
    call.close()


async def _half_a_head(call: Call, _: str, __: Random) -> None:
    call.send(b"HTTP/1.1 200 OK\r\ncontent-ty")
    call.close()


async def _half_an_answer(call: Call, mark: str, chance: Random) -> None:
    """Cut anywhere: in the head, in an event, in the framing."""
    wire = sse_head() + b"".join(chunk(token(f"{mark} {n}")) for n in range(5))
    call.send(wire[: chance.randrange(1, len(wire))])
    await asyncio.sleep(0)
    if not call.connection.closed.is_set():
        chance.choice((Call.close, Call.reset))(call)


async def _half_a_body(call: Call, mark: str, _: Random) -> None:
    call.send(b"HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\n" + mark.encode())
    call.close()


async def _garbage(call: Call, _: str, __: Random) -> None:
    call.send(b"\x00\x01\x02 SSH-2.0\r\n\r\n")


async def _garbage_in_a_stream(call: Call, mark: str, _: Random) -> None:
    call.send(sse_head(), chunk(token(mark)), b"no chunk\r\n")


async def _over_long_chunk(call: Call, mark: str, _: Random) -> None:
    """Longer than its size says."""
    data = token(mark)
    call.send(sse_head(), b"%x\r\n%b\r\n" % (len(data) - 3, data), b"0\r\n\r\n")


async def _too_short_a_length(call: Call, mark: str, _: Random) -> None:
    """The rest of the body stands where the next answer begins."""
    body = orjson.dumps({"choices": [{"text": mark}]})
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    call.send(head % (len(body) + 5), body + b"     ", b'{"choices": [{"text": "mark-0-"}]}')


async def _interim_answers(call: Call, mark: str, chance: Random) -> None:
    call.send(b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" * 3)
    await _good(call, mark, chance)


async def _gzip(call: Call, mark: str, _: Random) -> None:
    if call.target == EMBEDDINGS.encode():  # what passes through may be compressed
        call.send(json_reply({"choices": [{"text": mark}]}))
    else:
        body = gzip.compress(orjson.dumps({"choices": [{"text": mark}], "kv_transfer_params": KV}))
        call.send(json_reply(body, 200, b"content-encoding: gzip"))


async def _redirect(call: Call, _: str, __: Random) -> None:
    call.send(json_reply({}, 307, b"location: http://127.0.0.1:1/v1/completions"))


async def _slow_head(call: Call, mark: str, _: Random) -> None:
    line, end, rest = json_reply({"choices": [{"text": mark}]}).partition(b"\r\n")
    for piece in (line[:9], line[9:] + end, rest):
        await asyncio.sleep(0)
        if not call.connection.closed.is_set():
            call.send(piece)


async def _error_event(call: Call, mark: str, chance: Random) -> None:
    code = chance.choice((400, 500, 503))
    call.stream_whole(event({"error": {"message": mark, "code": code}}), DONE)


async def _nothing(call: Call, _: str, __: Random) -> None:
    """Until a time-out."""


Script = Callable[[Call, str, Random], Awaitable[None]]
DECODE: list[Script] = [
    *[_good] * 24,
    _good_and_close,
    _good_and_garbage,
    _another_answer,
    _trailers,
    _status(503),
    _status(503),
    _status(500),
    _status(400),
    _reset,
    _close,
    _half_a_head,
    _half_an_answer,
    _half_an_answer,
    _half_a_body,
    _garbage,
    _garbage_in_a_stream,
    _over_long_chunk,
    _too_short_a_length,
    _interim_answers,
    _gzip,
    _redirect,
    _slow_head,
    _error_event,
    _nothing,
]


async def _prefilled(call: Call, mark: str, chance: Random) -> None:
    await asyncio.sleep(chance.choice((0, 0, 0.003)))
    if not call.connection.closed.is_set():
        call.send(json_reply({"choices": [{"text": mark}], "kv_transfer_params": KV}))


def _with_reference(reference: bytes) -> "Script":
    """A prefill's reply with something else for a KV reference."""

    async def script(call: Call, mark: str, _: Random) -> None:
        body = b'{"choices": [{"text": "%b"}], "kv_transfer_params": %b}'
        call.send(json_reply(body % (mark.encode(), reference)))

    return script


PREFILL: list[Script] = [
    *[_prefilled] * 20,
    _good_and_close,
    *map(_with_reference, (b"null", b"{}", b"[1]", b'"x"', b"{", b'{"remote_port": 1e999}')),
    _interim_answers,
    _redirect,
    _status(500),
    _status(503),
    _reset,
    _half_a_body,
    _garbage,
    _nothing,
]


def _misbehave(engine: ScriptedEngine, scripts: list[Script], chance: Random) -> None:
    """Let the engine answer each call in a way of its own, and fail some connections at once."""
    tasks: set[asyncio.Task[None]] = set()

    def script(call: Call) -> None:
        body = orjson.loads(call.body)
        play = chance.choice(scripts)
        task = asyncio.ensure_future(_play(play, call, str(body.get("user")), chance))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def connected(connection: Connection) -> None:
        if chance.random() < 0.01:
            connection.reset()

    engine.answer_all(script)
    engine.on_connect = connected


async def _play(script: Script, call: Call, mark: str, chance: Random) -> None:
    with suppress(RuntimeError):  # the router has closed the connection under it
        await script(call, mark, chance)


# Clients.


class Storm:
    """Clients that ask all kinds of things and leave at all kinds of moments."""

    def __init__(self, router: Running, seed: int) -> None:
        self._router = router
        self._chance = Random(seed)
        self._kept: list[Client] = []
        self.seen: Counter[str] = Counter()
        self._number = 0

    async def run(self, count: int) -> None:
        """So many requests."""
        places = asyncio.Semaphore(AT_ONCE)

        async def one() -> None:
            async with places:
                self.seen[await self._one()] += 1

        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(one())
        for client in self._kept:
            client.leave()
        self._kept.clear()

    async def _one(self) -> str:
        chance = self._chance
        client = self._kept.pop() if self._kept else await Client.open(self._router.port)
        self._number += 1
        mark = f"mark-{self._number}-"
        path, data, stream = self._request(mark)
        moment = chance.choice((None,) * 9 + ("upload", "sent", "head", "later", "hang up"))
        try:
            end = await self._talk(client, data, moment)
        except (Truncated, ConnectionError) as error:
            # Half a body that is passed through has no other honest end.
            end = "cut" if path == EMBEDDINGS else f"wrong: {path} {error}"
        if not isinstance(end, Answer):
            client.leave()
            return end
        if end.values(b"connection") == [b"close"]:
            client.leave()
        else:
            self._kept.append(client)
        return _judge(end, mark, stream=stream)

    def _request(self, mark: str) -> tuple[str, bytes, bool]:
        chance = self._chance
        stream = chance.random() < 0.6
        body: dict[str, Any] = {"model": "m", "user": mark, "stream": stream}
        text = LONG if chance.random() < 0.5 else "short"
        path = chance.choice((COMPLETIONS, COMPLETIONS, CHAT, EMBEDDINGS))
        if path == CHAT:
            body["messages"] = [{"role": "user", "content": text}]
        else:
            body["prompt"] = text
        if path == EMBEDDINGS:
            body["stream"] = stream = False
        if chance.random() < 0.03:
            return path, request(path, b'{"broken'), False
        if chance.random() < 0.2:
            raw = orjson.dumps(body)
            chunked = (b"transfer-encoding", b"chunked")
            body_bytes = chunk(raw[:20]) + chunk(raw[20:]) + chunk(b"")
            return path, request(path, body_bytes, chunked), stream
        return path, request(path, body), stream

    async def _talk(self, client: Client, data: bytes, moment: str | None) -> Answer | str:
        """The answer, or how it came to none."""
        if moment == "upload":
            await client.send(data[: self._chance.randrange(1, len(data))])
            return "left"
        await client.send(data)
        if moment == "sent":
            return "left"
        if moment == "hang up":
            client.hang_up()
            return "left"
        if moment == "later":
            await asyncio.sleep(self._chance.random() * 0.01)
            return "left"
        answer = await client.begin()
        if moment == "head":
            return "left"
        return await answer.rest()


def _judge(answer: Answer, mark: str, *, stream: bool) -> str:
    """What kind of answer it is; "wrong..." for one that must not be."""
    text = answer.body.decode()
    if leaks_params(answer.body):
        return f"wrong: KV parameters {text}"
    if text.count("mark-") != text.count(mark):
        return f"wrong: another request's answer {text}"
    if answer.status != 200:
        is_error = "error" in answer.json and answer.status in (400, 500, 502, 503, 504)
        return f"status {answer.status}" if is_error else f"wrong: {answer}"
    if answer.values(b"content-type") == [b"application/json"]:
        return "good" if mark in text else f"wrong: {text}"
    if not answer.values(b"content-type"):  # half a body's engine named none
        return f"wrong: {answer}"
    if not text.endswith(DONE.decode()) or text.count(DONE.decode()) != 1:
        return f"wrong: no end {text}"
    for part in text.removesuffix(DONE.decode()).split("\n\n")[:-1]:
        orjson.loads(part.removeprefix("data: "))  # each event is whole
    return "broken stream" if '"error"' in text else "good stream"


# The test.


async def test_chaos_gives_no_wrong_answer_and_leaves_nothing_behind(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    # pytest keeps every line that it sees: 0.5 kB of memory for each request that is logged.
    access = logging.getLogger("pd_router.access")
    monkeypatch.setattr(access, "propagate", False)
    monkeypatch.setattr(access, "handlers", [logging.NullHandler()])
    # A probe that meets `_nothing` has the patience of all others here, not 10 s.
    monkeypatch.setattr("router.core.fleet.probing.SPEED_PROBE_TIMEOUT_SECONDS", PATIENCE)
    chance = Random(1)
    prefills = tuple([await harness.engine() for _ in range(2)])
    decodes = [await harness.engine() for _ in range(4)]
    router = await harness.router(
        *decodes,
        prefill=prefills,
        routing_threshold=THRESHOLD,
        load_balancing_strategy="least_loaded",
        health_check_interval=0.1,
        first_byte_timeout=PATIENCE,
        stream_idle_timeout=PATIENCE,
        prefill_timeout=PATIENCE,
        stall_timeout=2 * PATIENCE,
        idle_connection_timeout=2 * PATIENCE,
        max_in_flight=AT_ONCE // 2,
        max_in_flight_per_engine=AT_ONCE // 4,
    )
    gate = router.router.handler.network.admission
    assert gate is not None
    for engine in prefills:
        _misbehave(engine, PREFILL, chance)
    for engine in decodes:
        _misbehave(engine, DECODE, chance)
    disturbers = [
        asyncio.create_task(_refuse_now_and_then(decodes[0], chance)),
        asyncio.create_task(_lie_now_and_then(decodes[1], chance)),
    ]
    tasks = asyncio.all_tasks()

    tracemalloc.start()
    try:
        seen = await _storm(router, REQUESTS // 2, 1)
        before = tracemalloc.get_traced_memory()[0]
        seen += await _storm(router, REQUESTS - REQUESTS // 2, 2)
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
        for each in disturbers:
            each.cancel()
    print(dict(seen), f"memory {before} -> {after} bytes")  # shown by pytest -s

    assert [what for what in seen if what.startswith("wrong")] == []
    assert seen["good"] + seen["good stream"] > REQUESTS / 4
    assert after - before < KEPT_BYTES
    # A probe may be under way at this moment; what leaks stays.
    await eventually(lambda: all(t.done() for t in asyncio.all_tasks() - tasks))
    await router.is_quiet()
    admission = gate.admission
    assert (admission.in_flight, admission.waiting, gate.places.taken) == (0, 0, 0)


async def _refuse_now_and_then(engine: ScriptedEngine, chance: Random) -> None:
    while True:
        engine.refuse()
        await asyncio.sleep(chance.random() * 0.05)
        await engine.listen()
        await asyncio.sleep(chance.random() * 0.2)


async def _lie_now_and_then(engine: ScriptedEngine, chance: Random) -> None:
    """/health, /metrics and /v1/models of an engine that works say anything."""
    sound = engine.health, engine.metrics, engine.models
    lies = (
        json_reply({}, 500),
        json_reply({}, 307, b"location: http://127.0.0.1:1/"),
        json_reply(b"vllm:num_requests_running 1e999\nvllm:kv_cache_usage_perc -7\n{" * 999),
        json_reply(gzip.compress(b"x" * 99_999), 200, b"content-encoding: gzip"),
        json_reply(b"[" * 999),
        json_reply({"data": [{"id": "m"}, {"id": 5}, None, {"id": "m"}]}),
    )
    while True:
        engine.health = chance.choice((sound[0], sound[0], lies[0], lies[1]))
        engine.metrics = chance.choice((sound[1], *lies))
        engine.models = chance.choice((sound[2], lies[0], lies[4], lies[5]))
        await asyncio.sleep(chance.random() * 0.2)


async def _storm(router: Running, count: int, seed: int) -> Counter[str]:
    storm = Storm(router, seed)
    await storm.run(count)
    server = router.server.server_state
    await eventually(lambda: not server.tasks and not server.connections)
    await router.is_quiet()
    for pool in router.pools.values():
        pool.close()
    await eventually(lambda: not any(pool.open for pool in router.pools.values()))
    router.router.events.clear()
    gc.collect()
    return storm.seen
