"""What is over is freed at once: the garbage collector runs seldom (`tune_process`), and a request
may keep megabytes."""

import gc
from collections.abc import Callable, Iterator

import pytest

from router.core.errors import BadRequest
from router.core.health import State
from router.core.routing.large_body import LARGE_BYTES
from router.net.client.client_connection import ClientConnection
from router.net.request.served_request import ServedRequest
from tests.net.engine import Call, json_reply
from tests.net.harness import Harness, Running, eventually
from tests.net.payloads import COMPLETIONS, completion, token

BUSY = json_reply({"error": {"message": "full"}}, 503)


Alive = Callable[[type], int]


@pytest.fixture(autouse=True)
def alive() -> Iterator[Alive]:
    """Tells how many objects of a class have come and were not freed, without the collector."""
    gc.collect()
    gc.freeze()  # `get_objects` leaves out what there was
    gc.disable()
    yield lambda kind: sum(type(each) is kind for each in gc.get_objects())
    gc.enable()


async def freed(router: Running, alive: Alive) -> None:
    """Wait until no request is left."""
    await router.is_quiet()
    await eventually(lambda: alive(ServedRequest) == 0)


async def test_closed_connections_are_freed(harness: Harness, alive: Alive) -> None:
    engine = await harness.engine()
    engine.answer_all(lambda call: call.send(json_reply({})))
    router = await harness.router(engine)
    for _ in range(3):
        client = await router.client()
        assert (await client.ask(COMPLETIONS, completion())).status == 200
        client.leave()
    await eventually(lambda: alive(ClientConnection) == 0)


async def test_a_request_that_finds_no_engine_is_freed(harness: Harness, alive: Alive) -> None:
    engine = await harness.engine(listening=False)
    router = await harness.router(engine, ready=False)
    member = router.router.fleet.member(router.endpoint(engine))
    assert member.health.state is not State.UP
    client = await router.client()
    for _ in range(3):
        assert (await client.ask(COMPLETIONS, completion())).status == 503
    await freed(router, alive)


async def test_a_request_that_ends_before_its_deadline_is_freed(
    harness: Harness, alive: Alive
) -> None:
    """Also one that has waited in the queue."""
    engine, router = await harness.single(request_deadlines="on", max_in_flight=1)
    deadline = (b"x-request-timeout", b"1000")
    clients = [await router.send(COMPLETIONS, completion(), deadline) for _ in range(2)]
    for client in clients:
        (await engine.call()).send(json_reply({}))
        assert (await client.answer()).status == 200
    await freed(router, alive)


def _busy(call: Call) -> None:
    call.send(BUSY)


def _reset(call: Call) -> None:
    call.reset()


@pytest.mark.parametrize("fails", [_busy, _reset])
async def test_a_request_that_only_engine_fails_is_freed(
    harness: Harness, alive: Alive, fails: Callable[[Call], None]
) -> None:
    engine = await harness.engine()
    engine.answer_all(fails)
    router = await harness.router(engine)
    client = await router.client()
    assert (await client.ask(COMPLETIONS, completion())).status in (502, 503)
    await freed(router, alive)


async def test_a_large_body_that_is_refused_is_freed(harness: Harness, alive: Alive) -> None:
    """Through its traceback the error refers to all that held the body."""
    router = await harness.router(await harness.engine())
    client = await router.client()
    assert (await client.ask(COMPLETIONS, b"x" * (LARGE_BYTES + 1))).status == 400
    await freed(router, alive)
    await eventually(lambda: alive(BadRequest) == 0)


async def test_a_stream_whose_client_leaves_is_freed(harness: Harness, alive: Alive) -> None:
    _, router, client, call = await harness.stream()
    call.stream(token("a"))
    await (await client.begin()).until(token("a"))
    client.leave()
    await freed(router, alive)
