"""Requests about responses that an engine stores, as vLLM does."""

from typing import Any

import pytest

from tests.net.client import request
from tests.net.engine import Call, ScriptedEngine, json_reply
from tests.net.harness import Harness, Running

RESPONSES = "/v1/responses"
NOT_FOUND = json_reply({"error": {"message": "not found", "type": "NotFoundError"}}, 404)


class Store:
    """An engine that stores its responses, and answers 404 for those of others."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self.names: list[str] = []
        self.cancelled: list[str] = []
        self.keys: list[bytes] = []
        engine.answer_all(self._answer)

    def _answer(self, call: Call) -> None:
        self.keys += call.values(b"authorization")
        name, _, action = call.target.decode().removeprefix(f"{RESPONSES}/").partition("/")
        if call.target.decode() == RESPONSES:
            previous = call.json.get("previous_response_id")
            if previous is not None and previous not in self.names:
                call.send(NOT_FOUND)
                return
            self.names.append(call.json.get("request_id", "resp_own"))
            call.send(json_reply({"id": self.names[-1]}))
        elif name not in self.names:
            call.send(NOT_FOUND)
        else:
            self.cancelled += [name] * (action == "cancel")
            call.send(json_reply({"id": name, "method": call.method.decode()}))


async def started(harness: Harness, **settings: Any) -> tuple[Running, list[Store]]:
    """A router with three such engines."""
    engines = [await harness.engine() for _ in range(3)]
    settings = {"stored_responses": "on", "load_balancing_strategy": "round_robin", **settings}
    return await harness.router(*engines, **settings), [Store(engine) for engine in engines]


def every(stores: list[Store], kind: str) -> list[Any]:
    """What all of them have noted."""
    return [each for store in stores for each in getattr(store, kind)]


async def said(router: Running, *headers: tuple[bytes, bytes], **body: Any) -> Any:
    """The answer to a request."""
    client = await router.client()
    await client.send(request(RESPONSES, {"model": "m", "input": "x", **body}, *headers))
    return await client.answer()


async def test_a_conversation_stays_where_its_responses_are_stored(harness: Harness) -> None:
    router, stores = await started(harness)
    for _ in range(3):  # each begins on the next engine
        name = (await said(router)).json["id"]
        for _ in range(3):
            answer = await said(router, previous_response_id=name)
            assert answer.status == 200
            name = answer.json["id"]
    assert [len(store.names) for store in stores] == [4, 4, 4]


async def test_another_router_and_large_bodies_find_the_engine_too(harness: Harness) -> None:
    router, stores = await started(harness)
    name = (await said(router)).json["id"]
    other = await harness.router(
        *harness.engines, stored_responses="on", load_balancing_strategy="round_robin"
    )
    for text in ("x", "x" * (2 << 20)):
        for _ in range(3):
            assert (await said(other, previous_response_id=name, input=text)).status == 200
    assert sorted(len(store.names) for store in stores) == [0, 0, 7]


@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("POST", "/cancel")])
async def test_a_stored_response_is_fetched_and_cancelled(
    harness: Harness, method: str, path: str
) -> None:
    router, stores = await started(harness)
    name = (await said(router)).json["id"]
    client = await router.client()
    key = (b"authorization", b"Bearer mine")
    await client.send(request(f"{RESPONSES}/{name}{path}", None, key, method=method))
    answer = await client.answer()
    assert (answer.status, answer.json) == (200, {"id": name, "method": method})
    assert every(stores, "cancelled") == [name] * bool(path)
    assert every(stores, "keys") == [b"Bearer mine"]


async def test_engines_get_the_routers_key_in_place_of_the_clients(harness: Harness) -> None:
    router, stores = await started(harness, engine_api_key="secret")
    name = (await said(router, (b"authorization", b"Bearer mine"))).json["id"]
    client = await router.client()
    key = (b"authorization", b"Bearer mine")
    await client.send(request(f"{RESPONSES}/{name}", None, key, method="GET"))
    assert (await client.answer()).status == 200
    assert set(every(stores, "keys")) == {b"Bearer secret"}


@pytest.mark.parametrize(
    ("name", "status"), [("resp_1", 404), ("x" * 300, 404), ("resp_%2e%2e%2fsleep", 404)]
)
async def test_an_unknown_response_is_404_without_an_engine(
    harness: Harness, name: str, status: int
) -> None:
    router, stores = await started(harness)
    answer = await (await router.client()).get(f"{RESPONSES}/{name}")
    assert (answer.status, answer.error["type"]) == (status, "NotFoundError")
    assert not any(engine.seen for engine in harness.engines)
    assert (await said(router, previous_response_id=name)).status == 404  # an engine's
    assert not any(store.names for store in stores)


async def test_the_engine_that_stores_it_may_be_gone(harness: Harness) -> None:
    router, _ = await started(harness)
    name = (await said(router)).json["id"]
    for engine in harness.engines:
        engine.refuse()
        engine.drop()
    answer = await (await router.client()).get(f"{RESPONSES}/{name}")
    assert (answer.status, answer.error["type"]) == (502, "EngineError")
    answer = await (await router.client()).get(f"{RESPONSES}/{name}?stream=true")
    assert answer.status == 400


async def test_by_default_engines_name_their_responses(harness: Harness) -> None:
    router, stores = await started(harness, stored_responses="off")
    assert (await said(router)).json["id"] == "resp_own"
    assert every(stores, "names") == ["resp_own"]


async def test_a_client_may_name_its_response(harness: Harness) -> None:
    router, _ = await started(harness)
    assert (await said(router, request_id="resp_mine")).json["id"] == "resp_mine"
