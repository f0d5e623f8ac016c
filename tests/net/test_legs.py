"""A client's end and its engine's bytes in one turn of the event loop, in every order."""

from typing import Any

import pytest

from router.core.values import Failure, FailureKind
from tests.net.asks import COMPLETIONS, EMBEDDINGS, STREAM, answer_remotely, completion, token
from tests.net.client import Client, request
from tests.net.engine import Call
from tests.net.house import House, Running, eventually

HEAD = [(b"content-type", b"text/event-stream")]
BROKEN = Failure(FailureKind.BROKEN, "broken")

SAYS = {
    "head": lambda relay: relay.on_head(200, list(HEAD), has_body=False),
    "data": lambda relay: relay.on_data(token("late"), is_last=False),
    "last data": lambda relay: relay.on_data(token("late"), is_last=True),
    "end": lambda relay: relay.on_end(),
    "break": lambda relay: relay.on_lost(BROKEN),
    "silence": lambda relay: relay.check_silence(1e9),
}


async def _relaying(
    house: House, way: str, path: str, body: object
) -> tuple[Running, Client, Call, Any]:
    """A request that is with the decode engine, and the relay that waits for its answer."""
    prefill, decode = await house.engine(), await house.engine()
    prefill.answer_all(answer_remotely)
    router = await house.router(decode, prefill=(prefill,) if way == "remote" else ())
    client = await router.client()
    await client.send(request(path, body))
    call = await decode.call()
    (relay,) = router.router._silence._watched
    return router, client, call, relay


@pytest.mark.parametrize("way", ["direct", "remote"])
@pytest.mark.parametrize(
    ("path", "body"),
    [(COMPLETIONS, STREAM), (COMPLETIONS, completion()), (EMBEDDINGS, {"input": "x"})],
    ids=["stream", "unary", "pass-through"],
)
@pytest.mark.parametrize("says", SAYS.values(), ids=SAYS)
async def test_what_an_engine_says_after_its_client_has_left_goes_nowhere(
    house: House, way: str, path: str, body: object, says: Any
) -> None:
    router, client, call, relay = await _relaying(house, way, path, body)
    response = relay._response
    # In one turn: the client's connection is lost, then the engine's bytes are read.
    (connection,) = [c for c in router.connections if c.active]
    connection.connection_lost(None)
    says(relay)
    says(relay)
    assert not response.is_started
    assert response._head == b""
    await call.left()
    await router.is_quiet()
    assert (await router.record()).outcome == "client_left"
    client.leave()


@pytest.mark.parametrize("says", SAYS.values(), ids=SAYS)
async def test_what_an_engine_says_behind_its_end_goes_nowhere(house: House, says: Any) -> None:
    _, client, call, relay = await _relaying(house, "direct", COMPLETIONS, STREAM)
    call.stream(token("a"))
    answer = await client.begin()
    await answer.until(token("a"))
    connection = relay.connection
    relay.on_lost(BROKEN)
    connection.abort()
    says(relay)
    await answer.rest()
    assert answer.body.count(b"data: [DONE]") == 1
    assert b"late" not in answer.body


async def test_the_clients_end_in_the_turn_of_the_engines_end(house: House) -> None:
    """All was written; whether the client has read it nobody knows. It counts as answered."""
    router, client, call, relay = await _relaying(house, "direct", COMPLETIONS, STREAM)
    call.stream(token("a"))
    answer = await client.begin()
    await answer.until(token("a"))
    (connection,) = router.connections
    relay.connection.data_received(b"0\r\n\r\n")
    connection.transport.abort()
    record = await router.record()
    assert (record.status, record.outcome) == (200, "ok")
    await eventually(lambda: router.pool(house.engines[1]).idle == 1)
    client.leave()
