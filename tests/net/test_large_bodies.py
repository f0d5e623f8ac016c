"""Large bodies are read by another process, and all bodies together have a limit."""

import asyncio
import os
import signal
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import orjson
import pytest

from router.core.errors import InternalError
from router.core.routes import ROUTES
from router.core.routing.large_body import LARGE_BYTES, LIGHT_BYTES, is_large
from router.net.processes.body_parser import BodyParser
from tests.net.client import Client, request
from tests.net.engine import chunk, json_reply
from tests.net.harness import Harness, Running, eventually
from tests.net.payloads import CHAT, COMPLETIONS, DONE, KV, answer_remotely, completion, token

LARGE = orjson.dumps(completion("x" * (LARGE_BYTES + 1)))
MANY = orjson.dumps({"model": "m", "messages": [{}] * LIGHT_BYTES})
"""Of 190 kB, and slow to read."""


def parser_of(router: Running) -> BodyParser:
    """What has its large bodies read."""
    parser = router.router.handler.network.body_parser
    assert isinstance(parser, BodyParser)
    return parser


def held(router: Running) -> int:
    """Bytes of bodies that it holds."""
    return router.router.handler.network.byte_budget.held


@pytest.fixture
def stopped() -> Iterator[list[int]]:
    """Stopped processes; they continue at the test's end."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


async def stop_process(router: Running, stopped: list[int]) -> int:
    """Let the process that reads large bodies do nothing; it is started first."""
    await router.ask(COMPLETIONS, LARGE)
    pid = parser_of(router).pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    stopped.append(pid)
    return pid


@pytest.mark.parametrize(
    "body", [LARGE, MANY, LARGE + b" " * 600_000], ids=["large", "many", "end"]
)
async def test_it_reaches_its_engine(harness: Harness, body: bytes) -> None:
    engine = await harness.engine()
    engine.answer_all(lambda call: call.send(json_reply({})))
    router = await harness.router(engine)
    client = await router.client()
    path = COMPLETIONS if body is not MANY else CHAT
    for _ in range(2):
        assert (await client.ask(path, body)).status == 200
    first, second = await router.records(2)
    assert first.tokens == second.tokens == (0 if body is MANY else (LARGE_BYTES + 1) // 4)
    assert first.model == "m"
    assert parser_of(router).pid is not None
    assert held(router) == 0


async def test_its_bytes_are_the_clients(harness: Harness) -> None:
    engine, router = await harness.single()
    client = await router.send(COMPLETIONS, LARGE)
    call = await engine.call()
    assert await call.read() == LARGE
    call.send(json_reply({}))
    await client.answer()


async def test_it_is_prefilled_remotely(harness: Harness) -> None:
    prefill, decode = await harness.engine(), await harness.engine()
    router = await harness.router(decode, prefill=(prefill,))
    client = await router.send(COMPLETIONS, LARGE)
    call = await prefill.call()
    asked = orjson.loads(await call.read())
    assert asked["prompt"] == "x" * (LARGE_BYTES + 1)
    assert (asked["max_tokens"], asked["kv_transfer_params"]["do_remote_decode"]) == (1, True)
    answer_remotely(call)
    call = await decode.call()
    assert await call.read() == LARGE[:-1] + b',"kv_transfer_params":' + orjson.dumps(KV) + b"}"
    call.send(json_reply({}))
    assert (await client.answer()).status == 200


async def test_a_prompt_in_one_read_reaches_both_engines_as_it_is(harness: Harness) -> None:
    """Of the second one with that head the body is a view."""
    body = orjson.dumps(completion("x" * 2 * LIGHT_BYTES))
    prefill, decode = await harness.engine(), await harness.engine()
    router = await harness.router(decode, prefill=(prefill,))
    client = await router.client()
    for _ in range(3):
        await client.send(request(COMPLETIONS, body))
        call = await prefill.call()
        assert orjson.loads(await call.read())["prompt"] == "x" * 2 * LIGHT_BYTES
        answer_remotely(call)
        call = await decode.call()
        assert await call.read() == body[:-1] + b',"kv_transfer_params":' + orjson.dumps(KV) + b"}"
        call.send(json_reply({}))
        assert (await client.answer()).status == 200
    assert held(router) == 0


async def test_forbidden_keys_do_not_pass(harness: Harness) -> None:
    engine, router = await harness.single()
    client = await router.send(COMPLETIONS, LARGE[:-1] + b',"kv_transfer_params":{"a":1}}')
    call = await engine.call()
    assert await call.read() == LARGE
    call.send(json_reply({}))
    await client.answer()


@pytest.mark.parametrize("body", [LARGE[:-1], b"[" + LARGE + b"]", LARGE[:-1] + b',"model":1}'])
async def test_a_bad_one_is_400(harness: Harness, body: bytes) -> None:
    engine, router = await harness.single()
    answer = await router.ask(COMPLETIONS, body)
    assert answer.status == 400
    assert answer.error["param"] in ("body", "model")
    assert engine.seen == 0


async def test_small_ones_start_no_process(harness: Harness) -> None:
    engine = await harness.engine()
    engine.answer_all(lambda call: call.send(json_reply({})))
    router = await harness.router(engine)
    await router.ask(COMPLETIONS, completion("x" * (LARGE_BYTES // 2)))
    assert parser_of(router).pid is None


async def test_a_dense_one_is_read_apart_however_small(harness: Harness) -> None:
    """Parsed it takes twenty times its size, for as long as it waits for its engine."""
    engine = await harness.engine()
    engine.answer_all(lambda call: call.send(json_reply({})))
    router = await harness.router(engine)
    body = orjson.dumps({**completion(), "ignored": [{}] * 2000})
    assert (await router.ask(COMPLETIONS, body)).status == 200
    assert parser_of(router).pid is not None


async def test_while_one_is_read_others_are_served(harness: Harness, stopped: list[int]) -> None:
    engine = await harness.engine()
    engine.answer_all(lambda call: call.send(json_reply({})))
    router = await harness.router(engine)
    pid = await stop_process(router, stopped)
    client = await router.send(COMPLETIONS, LARGE)
    await eventually(lambda: held(router) >= len(LARGE))
    for _ in range(3):
        assert (await router.ask(COMPLETIONS, completion())).status == 200
    os.kill(pid, signal.SIGCONT)
    assert (await client.answer()).status == 200


async def test_a_process_that_dies_fails_one_request(
    harness: Harness, complaints: list[str], stopped: list[int]
) -> None:
    engine = await harness.engine()
    engine.answer_all(lambda call: call.send(json_reply({})))
    router = await harness.router(engine)
    pid = await stop_process(router, stopped)
    client = await router.send(COMPLETIONS, LARGE)
    parser = parser_of(router)
    await eventually(lambda: parser._task is not None and not parser._questions)
    os.kill(stopped.pop(), signal.SIGKILL)
    answer = await client.answer()
    assert answer.status == 500
    assert answer.error["message"] == "The router could not read the body."
    assert "the process that reads large bodies failed" in complaints.pop()
    assert (await client.ask(COMPLETIONS, LARGE)).status == 200
    assert parser_of(router).pid != pid


async def test_a_process_that_dies_while_idle_fails_none(harness: Harness) -> None:
    engine = await harness.engine()
    engine.answer_all(lambda call: call.send(json_reply({})))
    router = await harness.router(engine)
    client = await router.client()
    assert (await client.ask(COMPLETIONS, LARGE)).status == 200
    parser = parser_of(router)
    process = parser._process
    assert process is not None
    process.kill()
    await process.wait()
    assert (await client.ask(COMPLETIONS, LARGE)).status == 200
    assert parser.pid != process.pid


async def test_a_process_that_dies_at_once_is_no_fault_of_the_routers(
    complaints: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started = asyncio.create_subprocess_exec

    async def dies(*_: object, **pipes: Any) -> asyncio.subprocess.Process:
        process = await started("true", **pipes)
        await process.wait()
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", dies)
    parser = BodyParser(None)
    with pytest.raises(InternalError, match="could not read the body"):
        await parser.read(ROUTES["/v1/completions"], b"application/json", [LARGE])
    assert "the process that reads large bodies failed (" in complaints.pop()
    await parser.close()


async def test_a_body_that_fails_the_process_does_not_end_it(complaints: list[str]) -> None:
    parser = BodyParser(None)
    await parser.read(ROUTES["/v1/completions"], b"application/json", [LARGE])
    pid = parser.pid
    unknown = replace(ROUTES["/v1/completions"], path="/unknown")
    with pytest.raises(InternalError, match="could not read the body"):
        await parser.read(unknown, b"application/json", [LARGE])
    assert "reading a large body failed" in complaints.pop()
    await parser.read(ROUTES["/v1/completions"], b"application/json", [LARGE])
    assert parser.pid == pid
    await parser.close()


async def test_a_disconnect_affects_no_other_client(harness: Harness, stopped: list[int]) -> None:
    engine = await harness.engine()
    engine.answer_all(lambda call: call.send(json_reply({})))
    router = await harness.router(engine)
    pid = await stop_process(router, stopped)
    clients = [await router.client() for _ in range(3)]
    for client in clients:
        await client.send(request(COMPLETIONS, LARGE))
    await eventually(lambda: held(router) >= 3 * len(LARGE))
    for client in clients[:2]:  # the first is being read, the second waits for that
        client.leave()
    await eventually(lambda: held(router) == len(LARGE))
    os.kill(pid, signal.SIGCONT)
    assert (await clients[2].answer()).status == 200
    assert engine.seen == 2
    assert parser_of(router).pid == pid


async def test_a_waiting_body_is_released_when_its_client_disconnects() -> None:
    class Pieces(list[bytes]):
        """What a weak reference can point to."""

    parser, route = BodyParser(None), ROUTES[COMPLETIONS]
    first = asyncio.ensure_future(parser.read(route, b"", [LARGE]))
    pieces = Pieces([LARGE])
    kept = weakref.ref(pieces)
    second = asyncio.ensure_future(parser.read(route, b"", pieces))
    await asyncio.sleep(0)  # the first has been taken up, and no process been started yet
    assert not first.done()
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    del second, pieces
    assert kept() is None
    assert (await first).model == "m"
    await parser.close()


async def test_the_ids_of_a_long_prompt_are_known_as_those_of_a_short_one(harness: Harness) -> None:
    """KV-cache events speak of ids; ten thousand of them are many values."""
    engine = await harness.engine()
    engine.answer_all(lambda call: call.send(json_reply({})))
    router = await harness.router(engine, prefix_cache="events")
    events = router.router.fleet.cache_events
    assert events is not None
    for number, length in enumerate((1000, 20_000), 1):
        body = orjson.dumps({"model": "m", "prompt": list(range(100_000, 100_000 + length))})
        assert is_large(body) == (length > 1000)
        assert (await router.ask(COMPLETIONS, body)).status == 200
        assert (events.known, events.unknown) == (number, 0)


# All bodies together.

ROOM = 10_000


async def small_room(harness: Harness) -> tuple[Running, Client]:
    """A router that holds ROOM bytes of bodies, and a client whose body has taken 8,000 of them."""
    engine = await harness.engine()
    engine.answer_all(lambda call: call.send(json_reply({})))
    router = await harness.router(engine, max_body_bytes=ROOM, max_buffered_bytes=ROOM)
    client = await router.send(COMPLETIONS, b"x" * 8000, (b"content-length", b"8001"))
    await eventually(lambda: held(router) == 8000)
    return router, client


async def test_a_body_without_room_is_503_before_it_is_sent(harness: Harness) -> None:
    router, _ = await small_room(harness)
    client = await router.send(COMPLETIONS, b"", (b"content-length", b"2001"))
    answer = await client.answer()
    assert answer.status == 503
    assert answer.error["type"] == "ServiceUnavailableError"
    assert answer.values(b"retry-after") == [b"1"]
    assert (await router.ask(COMPLETIONS, completion())).status == 200
    assert held(router) == 8000


async def test_a_chunked_body_is_503_when_it_exceeds_the_room(harness: Harness) -> None:
    router, _ = await small_room(harness)
    client = await router.send(COMPLETIONS, chunk(b"x" * 1500), (b"transfer-encoding", b"chunked"))
    await eventually(lambda: held(router) == 9500)
    await client.send(chunk(b"x" * 1500))
    assert (await client.answer()).status == 503
    assert held(router) == 8000


async def test_a_client_that_leaves_makes_room(harness: Harness) -> None:
    router, client = await small_room(harness)
    client.leave()
    await eventually(lambda: held(router) == 0)


async def test_a_body_is_held_until_its_stream_begins(harness: Harness) -> None:
    engine, router = await harness.single(max_buffered_bytes=1 << 20, max_body_bytes=1 << 20)
    client = await router.client()
    body = orjson.dumps(completion("x" * 5000, stream=True))
    await client.send(request(COMPLETIONS, body))
    call = await engine.call()
    assert held(router) == len(body)
    call.stream(token("a"))
    await eventually(lambda: held(router) == 0)
    call.end(DONE)
    assert (await client.answer()).status == 200


@pytest.mark.parametrize(
    ("path", "limit"), [("/v1/audio/speech", 1 << 20), ("/tokenize", 16 << 20)]
)
async def test_a_route_that_needs_little_takes_little(
    harness: Harness, path: str, limit: int
) -> None:
    router = await harness.router(await harness.engine())
    client = await router.send(path, b"", (b"content-length", b"%d" % (limit + 1)))
    answer = await client.answer()
    assert answer.status == 413
    assert str(limit) in answer.error["message"]
