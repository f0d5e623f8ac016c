"""A client's end and its engine's bytes in one turn of the event loop, in every order."""

from typing import Any

import pytest

from router.core.values import Failure, FailureKind
from router.net.engine.answer import AnswerHead
from tests.net.client import Client
from tests.net.engine import Call
from tests.net.harness import Harness, Running, eventually
from tests.net.payloads import (
    COMPLETIONS,
    DONE,
    EMBEDDINGS,
    STREAM,
    answer_remotely,
    completion,
    token,
)

HEAD = [(b"content-type", b"text/event-stream")]
BROKEN = Failure(FailureKind.BROKEN, "broken")

SAYS = {
    "head": lambda relay: relay.on_head(AnswerHead(200, list(HEAD)), None, has_body=False),
    "data": lambda relay: relay.on_data(token("late"), is_last=False),
    "last data": lambda relay: relay.on_data(token("late"), is_last=True),
    "end": lambda relay: relay.on_end(),
    "break": lambda relay: relay.on_lost(BROKEN),
    "idle_sweep": lambda relay: relay.check_idle(1e9),
}


async def _relaying(
    harness: Harness, mode: str, path: str, body: object
) -> tuple[Running, Client, Call, Any]:
    """A request that is with the decode engine, and the relay that waits for its answer."""
    prefill, decode = await harness.engine(), await harness.engine()
    prefill.answer_all(answer_remotely)
    router = await harness.router(decode, prefill=(prefill,) if mode == "remote" else ())
    client = await router.send(path, body)
    call = await decode.call()
    (relay,) = router.router.clients.idle_sweep._watched
    return router, client, call, relay


@pytest.mark.parametrize("mode", ["direct", "remote"])
@pytest.mark.parametrize(
    ("path", "body"),
    [(COMPLETIONS, STREAM), (COMPLETIONS, completion()), (EMBEDDINGS, {"input": "x"})],
    ids=["stream", "unary", "pass-through"],
)
@pytest.mark.parametrize("says", SAYS.values(), ids=SAYS)
async def test_bytes_after_a_client_disconnect_are_dropped(
    harness: Harness, mode: str, path: str, body: object, says: Any
) -> None:
    router, client, call, relay = await _relaying(harness, mode, path, body)
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
async def test_bytes_after_the_end_of_an_answer_are_dropped(harness: Harness, says: Any) -> None:
    _, client, call, relay = await _relaying(harness, "direct", COMPLETIONS, STREAM)
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


async def test_the_clients_end_in_the_turn_of_the_engines_end(harness: Harness) -> None:
    """All was written; whether the client has read it is unknown. It counts as answered."""
    router, client, call, relay = await _relaying(harness, "direct", COMPLETIONS, STREAM)
    call.stream(token("a"))
    answer = await client.begin()
    await answer.until(token("a"))
    (connection,) = router.connections
    call.events(DONE)
    await answer.until(token("a") + DONE)
    relay.connection.data_received(b"0\r\n\r\n")
    connection.transport.abort()
    record = await router.record()
    assert (record.status, record.outcome) == (200, "ok")
    await eventually(lambda: router.pool(harness.engines[1]).idle == 1)
    client.leave()
