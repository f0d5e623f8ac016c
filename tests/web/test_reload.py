"""A running router applies new settings at once, without an effect on requests in progress."""

from pathlib import Path
from typing import Any

import pytest

from router.settings import is_reloadable
from router.web.routing import SCHEDULING
from tests.net.client import request
from tests.net.harness import Harness, Running, eventually
from tests.net.payloads import (
    CHAT,
    COMPLETIONS,
    DONE,
    OK,
    STREAM,
    answer_remotely,
    completion,
    token,
)

KEYED = (b"authorization", b"Bearer 0123456789abcdef")


def reload(router: Running, **changes: Any) -> None:
    """As the configuration does it."""
    router.router.reload(router.router.settings.model_copy(update=changes))


async def test_stream_survives_every_reload(harness: Harness, tmp_path: Path) -> None:
    old, new = await harness.engine(), await harness.engine()
    router = await harness.router(old)
    client = await router.send(COMPLETIONS, STREAM)
    call = await old.call()
    call.stream(token("a"))
    answer = await (await client.begin()).until(token("a"))
    keys = tmp_path / "keys"
    keys.write_text("team 0123456789abcdef\n")
    reload(
        router,
        decode=(new.url,),
        routing_threshold=9,
        load_balancing_strategy="round_robin",
        max_body_bytes=1024,
        max_in_flight=1,
        stream_idle_timeout=99.0,
        stall_timeout=9.0,
        api_key_file=keys,
    )
    call.end(token("b"), DONE)
    await answer.rest()
    assert answer.body == token("a") + token("b") + DONE
    new.answer_all(lambda call: call.send(OK))
    await router.usable(new)
    assert (await client.ask(COMPLETIONS, completion(), KEYED)).status == 200


async def test_engines_are_added_and_removed(harness: Harness) -> None:
    old, new = await harness.engine(), await harness.engine()
    router = await harness.router(old)
    reload(router, decode=(new.url,))
    await router.usable(new)
    new.answer_all(lambda call: call.send(OK))
    assert (await router.ask(COMPLETIONS, completion())).status == 200
    await eventually(lambda: [each.url for each in router.pools] == [new.url])


async def test_a_pool_that_is_named_later_is_counted_while_it_is_empty(harness: Harness) -> None:
    router = await harness.router(await harness.engine())
    count = b'pd_router_pool_usable_engines{role="prefill"} 0.0'
    assert count not in router.router.metrics.exposition()
    reload(router, dns_prefill=("p:80",))
    assert count in router.router.metrics.exposition()


async def test_gateways_are_trusted_and_no_longer_trusted(harness: Harness) -> None:
    engine = await harness.engine()
    engine.answer_all(lambda call: call.send(OK))
    router = await harness.router(engine, direct_mode="on", trusted_gateways=["10.0.0.0/8"])
    client = await router.client()
    told = []
    for networks in (("10.0.0.0/8",), ("127.0.0.0/8",), ("10.0.0.0/8",)):
        reload(router, trusted_gateways=networks)
        answer = await client.ask(COMPLETIONS, completion())
        told.append(len(answer.values(b"x-gateway-destination-endpoint-served")))
    assert told == [0, 1, 0]


async def test_the_threshold_counts_from_the_next_request_on(harness: Harness) -> None:
    prefill, decode = await harness.engine(), await harness.engine()
    router = await harness.router(decode, prefill=(prefill,), routing_threshold=1000)
    prefill.answer_all(answer_remotely)
    decode.answer_all(lambda call: call.send(OK))
    await router.ask(COMPLETIONS, completion("x" * 400))
    reload(router, routing_threshold=10)
    await router.ask(COMPLETIONS, completion("x" * 400))
    assert [record.mode for record in await router.records(2)] == ["direct", "remote_prefill"]
    text = (await (await router.client()).get("/metrics")).body.decode()
    assert 'pd_router_config_info{connector="nixl"' in text
    assert 'routing_threshold="10"' in text


async def test_images_have_the_stated_tokens_wherever_their_bodies_are_parsed(
    harness: Harness,
) -> None:
    prefill, decode = await harness.engine(), await harness.engine()
    router = await harness.router(decode, prefill=(prefill,), routing_threshold=1000)
    prefill.answer_all(answer_remotely)
    decode.answer_all(lambda call: call.send(OK))
    urls = [f"data:image/png;base64,{'A' * size}" for size in (4, 1 << 21)]
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    bodies = [{"model": "m", "messages": [{"role": "user", "content": [it]}]} for it in parts]
    for tokens in ({}, {"m": 256}):
        reload(router, image_tokens=tokens)
        for body in bodies:
            await router.ask(CHAT, body)
    modes = [record.mode for record in await router.records(4)]
    assert modes == ["remote_prefill"] * 2 + ["direct"] * 2


async def test_ports_of_kv_caches_follow_their_engines(harness: Harness) -> None:
    """A map names engines, so it changes with them."""
    prefill, decode = await harness.engine(), await harness.engine()
    router = await harness.router(decode, prefill=(prefill,), disagg_connector_type="moriio")
    decode.answer_all(lambda call: call.send(OK))
    for port in (7000, 7001):
        ports = {decode.url: port}
        reload(router, moriio_handshake_port=ports, moriio_notify_port=ports)
        client = await router.send(COMPLETIONS, completion())
        call = await prefill.call()
        params = call.json["kv_transfer_params"]
        assert params["remote_handshake_port"] == params["remote_notify_port"] == port
        answer_remotely(call)
        assert (await client.answer()).status == 200
    for name in ("mooncake_bootstrap_port", "moriio_handshake_port", "moriio_notify_port"):
        assert is_reloadable(name)


async def test_turns_go_on_where_they_were(harness: Harness) -> None:
    """A new scheduler that counted from 0 would take its own choices for the oldest."""
    engines = [await harness.engine() for _ in range(3)]
    router = await harness.router(*engines, load_balancing_strategy="round_robin")
    for engine in engines:
        engine.answer_all(lambda call: call.send(OK))
    for _ in range(4):
        await router.ask(COMPLETIONS, completion())
    reload(router, retry_budget=0.5)
    for _ in range(5):
        await router.ask(COMPLETIONS, completion())
    chosen = [record.decode for record in await router.records(9)]
    assert chosen == [router.endpoint(engine) for engine in engines] * 3


async def test_an_unrelated_reload_keeps_the_schedulers_measurements(harness: Harness) -> None:
    router = await harness.router(await harness.engine())
    scheduler = router.router.handler.network.scheduler
    reload(router, max_body_bytes=2048)
    assert router.router.handler.network.scheduler is scheduler
    assert all(is_reloadable(name) for name in SCHEDULING)


async def test_limits_hold_on_connections_that_are_open(harness: Harness) -> None:
    engine, router = await harness.single()
    engine.answer_all(lambda call: call.send(OK))
    client = await router.client()
    long = completion("x" * 3000)
    assert (await client.ask(COMPLETIONS, long)).status == 200  # its head is known now
    reload(router, max_body_bytes=1024, keep_alive_timeout=5.0)
    assert (await client.ask(COMPLETIONS, long)).status == 413
    assert router.router.handler.keep_alive_seconds == 5.0
    assert router.router.operators.handler.keep_alive_seconds == 5.0


async def test_keys_are_required_only_once(harness: Harness, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("team 0123456789abcdef\n")
    engine, router = await harness.single()
    engine.answer_all(lambda call: call.send(OK))
    client = await router.client()
    assert (await client.ask(COMPLETIONS, completion())).status == 200
    reload(router, api_key_file=keys)
    assert (await client.ask(COMPLETIONS, completion())).status == 401
    assert (await router.ask(COMPLETIONS, completion(), KEYED)).status == 200
    reload(router, api_key_file=None)
    assert (await router.ask(COMPLETIONS, completion())).status == 200


async def test_a_key_file_that_is_gone_changes_nothing(harness: Harness, tmp_path: Path) -> None:
    router = await harness.router(await harness.engine())
    keys = tmp_path / "keys"
    keys.write_text("team 0123456789abcdef\n")
    changed = router.router.settings.model_copy(update={"api_key_file": keys, "queue_size": 3})
    keys.unlink()
    before = router.router.settings
    with pytest.raises(FileNotFoundError):
        router.router.reload(changed)
    assert router.router.settings is before
    assert router.router.handler.network.api_keys is None


async def test_without_the_operators_keys_the_clients_keys_change_nothing(
    harness: Harness, tmp_path: Path
) -> None:
    router = await harness.router(await harness.engine())
    keys = tmp_path / "keys"
    keys.write_text("team 0123456789abcdef streams=3\n")
    with pytest.raises(FileNotFoundError):
        reload(router, api_key_file=keys, admin_key_file=tmp_path / "none")
    assert router.router.handler.network.api_keys is None
    assert b'api_key="team"' not in router.router.metrics.exposition()


async def test_a_queue_comes_changes_and_goes(harness: Harness) -> None:
    engine, router = await harness.single()
    reload(router, max_in_flight=1)
    clients = [await router.client() for _ in range(3)]
    calls = []
    for client in clients:
        await client.send(request(COMPLETIONS, completion()))
    gate = router.router.handler.network.admission
    assert gate is not None
    calls.append(await engine.call())
    await eventually(lambda: gate.admission.waiting == 2)
    reload(router, max_in_flight=2)  # one more at once
    calls.append(await engine.call())
    assert gate.admission.waiting == 1
    reload(router, max_in_flight=None)
    calls.append(await engine.call())
    assert gate.admission.waiting == 0
    for call in calls:
        call.send(OK)
    for client in clients:
        assert (await client.answer()).status == 200
    await router.records(3)
    assert gate.admission.in_flight == 0  # each gave back the place that it had


async def test_exclusions_follow_the_new_rules(harness: Harness) -> None:
    good, bad = await harness.engine(), await harness.engine()
    router = await harness.router(bad, good, outlier_consecutive_failures=0)
    reload(router, outlier_consecutive_failures=1)
    good.answer_all(lambda call: call.send(OK))
    bad.answer_all(lambda call: call.close())
    for _ in range(2):
        await router.ask(COMPLETIONS, completion())
    member = router.router.fleet.member(router.endpoint(bad))
    assert member.exclusion is not None


async def test_patience_with_engines_changes_for_the_next_connection(harness: Harness) -> None:
    engine, router = await harness.single()
    reload(router, connect_timeout=1.5, max_idle_connections=0, engine_header="on")
    engine.answer_all(lambda call: call.send(OK))
    answer = await router.ask(COMPLETIONS, completion())
    assert answer.values(b"x-pd-router-endpoint") == [engine.url.encode()]
    pool = router.pool(engine)
    await eventually(lambda: (pool.open, pool.idle) == (0, 0))  # none is kept any more
