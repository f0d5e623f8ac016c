"""LMCache's steps over real sockets: the wait between the legs, and two engines in one answer."""

from typing import Any

import msgpack
import pytest
import zmq

from router.core.events import FellBack, LegFailed
from router.core.membership.entry import Order, Target
from router.core.values import Endpoint, Receiver, Role
from router.settings import SettingsError
from tests.net.engine import Call, ScriptedEngine, json_reply
from tests.net.harness import Harness, Running, eventually
from tests.net.payloads import CHAT, COMPLETIONS, DONE, event
from tests.net.streams import COMMENT, early

LMCACHE: dict[str, Any] = {
    "disagg_connector_type": "lmcache",
    "decoder_host": "127.0.0.1",
    "decoder_init_port": "7300",
    "decoder_alloc_port": "7400",
}
ASK = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
OK = json_reply({"choices": [{"message": {"content": "ok"}}]})
TOKENS = {"model": "m", "prompt": [1, 2, 3], "max_tokens": 4}


async def _router(
    harness: Harness, *, notify: bool = True, **settings: Any
) -> tuple[Running, ScriptedEngine, ScriptedEngine]:
    prefill, decode = await harness.engine(), await harness.engine()
    unchecked = {"lmcache_notify_bind": "tcp://127.0.0.1:*"} if notify else {}
    router = await harness.router(
        decode, prefill=(prefill,), unchecked=unchecked, **{**LMCACHE, **settings}
    )
    return router, prefill, decode


def _notify(router: Running, call: Call) -> None:
    """The notification of a prefill engine's rank after the transfer."""
    waits = router.router.clients.kv_ready
    assert waits is not None
    transfer = call.json["kv_transfer_params"]["disagg_spec"]["req_id"]
    with zmq.Context() as context, context.socket(zmq.PUSH) as rank:
        rank.connect(waits.address)
        rank.send(msgpack.packb({"type": "ProxyNotif", "req_id": transfer}))


async def _is_waiting(router: Running) -> None:
    waits = router.router.clients.kv_ready
    assert waits is not None
    await eventually(lambda: len(waits._waits) == 1)


async def test_the_decode_leg_waits_until_the_kv_cache_has_arrived(harness: Harness) -> None:
    router, prefill, decode = await _router(harness)
    client = await router.send(CHAT, ASK)
    call = await prefill.call()
    call.send(OK)
    await _is_waiting(router)
    assert decode.seen == 0
    assert router.router.fleet.ledger.in_flight(router.endpoint(prefill)) == 0
    assert router.router.fleet.ledger.in_flight(router.endpoint(decode)) == 1
    _notify(router, call)
    (await decode.call()).send(OK)
    assert (await client.answer()).status == 200
    assert router.all(FellBack) == []


async def test_a_discovered_engine_has_its_kv_receiver(harness: Harness) -> None:
    router, prefill, named = await _router(harness, notify=False)
    found = await harness.engine()
    found.answer_all(lambda call: call.send(OK))
    endpoint = Endpoint(found.url, Role.DECODE)
    sync = router.router.sync
    await sync.order(Order.DRAIN, router.endpoint(named))
    for host in ("pod-1", "pod-2"):
        targets = (Target(endpoint, receiver=Receiver(host, (1,), (2,))),)
        sync.on_targets("kubernetes", targets)
        await eventually(lambda: router.router.fleet.member(endpoint).in_rotation)
        client = await router.send(CHAT, ASK)
        call = await prefill.call()
        assert call.json["kv_transfer_params"]["disagg_spec"]["receiver_host"] == host
        call.send(OK)
        assert (await client.answer()).status == 200


@pytest.mark.parametrize("leave", ["leave", "hang_up"])
async def test_leaving_between_legs_ends_the_wait(harness: Harness, leave: str) -> None:
    router, prefill, decode = await _router(harness)
    client = await router.send(CHAT, ASK)
    (await prefill.call()).send(OK)
    await _is_waiting(router)
    getattr(client, leave)()
    record = await router.record()
    assert (record.outcome, record.status) == ("client_left", 0)
    await router.is_quiet()
    assert decode.seen == 0
    await eventually(lambda: router.router.clients.kv_ready._waits == {})  # type: ignore[union-attr]
    assert router.all(LegFailed) == []


async def test_missing_notification_lets_decode_compute(harness: Harness) -> None:
    router, prefill, decode = await _router(harness, lmcache_notify_timeout=0.05)
    client = await router.send(CHAT, ASK)
    (await prefill.call()).send(OK)
    call = await decode.call()
    assert call.json == ASK
    call.send(OK)
    assert (await client.answer()).status == 200
    assert router.all(FellBack) == [FellBack(Role.PREFILL, "kv_ready_timeout")]


def _sampled(call: Call) -> None:
    choice = {"index": 0, "text": "A", "finish_reason": "length"}
    call.send(json_reply({"id": "p", "choices": [choice], "kv_transfer_params": {"first_tok": 7}}))


async def test_a_unary_answer_is_made_of_both_engines(harness: Harness) -> None:
    router, prefill, decode = await _router(harness, notify=False)
    prefill.answer_all(_sampled)
    client = await router.send(COMPLETIONS, TOKENS)
    call = await decode.call()
    assert call.json == {"model": "m", "prompt": [1, 2, 3, 7], "max_tokens": 3}
    usage = {"prompt_tokens": 4, "completion_tokens": 3, "total_tokens": 7}
    call.send(json_reply({"choices": [{"index": 0, "text": "BCD"}], "usage": usage}))
    answer = await client.answer()
    assert answer.json["choices"][0]["text"] == "ABCD"
    assert answer.json["usage"]["prompt_tokens"] == 3
    assert answer.values(b"content-length") == [b"%d" % len(answer.body)]


async def test_a_stream_is_made_of_both_engines(harness: Harness) -> None:
    router, prefill, decode = await _router(harness, notify=False)
    prefill.answer_all(_sampled)
    client = await router.send(COMPLETIONS, {**TOKENS, "stream": True})
    call = await decode.call()
    call.stream_whole(event({"id": "d", "choices": [{"index": 0, "text": "B"}]}), DONE)
    answer = await client.answer()
    assert answer.body.index(b'"A"') < answer.body.index(b'"B"')
    assert answer.body.endswith(DONE)
    assert b"kv_transfer_params" not in answer.body


async def test_a_client_is_kept_alive_between_the_legs(harness: Harness) -> None:
    router, prefill, decode = await _router(harness, sse_keep_alive=3600)
    client = await router.send(CHAT, {**ASK, "stream": True})
    call = await prefill.call()
    call.send(OK)
    await _is_waiting(router)
    answer = await early(router, client, 2)
    _notify(router, call)
    content = event({"choices": [{"index": 0, "delta": {"content": "a"}}]})
    (await decode.call()).stream_whole(content, DONE)
    await answer.rest()
    assert answer.body == COMMENT * 2 + content + DONE


async def test_one_token_answer_behind_an_early_head(harness: Harness) -> None:
    router, prefill, _ = await _router(harness, notify=False, sse_keep_alive=3600)
    client = await router.send(COMPLETIONS, {**TOKENS, "max_tokens": 1, "stream": True})
    call = await prefill.call()
    answer = await early(router, client)
    _sampled(call)
    await answer.rest()
    assert answer.body.startswith(COMMENT + b'data: {"id":"p","choices":[{"index":0,"text":"A"')
    assert answer.body.endswith(DONE)
    record = await router.record()
    assert (record.status, record.outcome) == (200, "ok")
    assert record.first_byte is not None


async def test_a_missing_package_is_named_when_the_router_is_built(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(address: str) -> None:
        raise ImportError("KV-ready notifications need zmq")

    monkeypatch.setattr("router.web.client_side.KVReadySocket", missing)
    with pytest.raises(SettingsError, match="--lmcache-notify-bind: KV-ready notifications"):
        await _router(harness)
