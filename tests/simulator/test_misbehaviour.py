"""Faults over real sockets: the view of a faulty engine's client."""

import asyncio

import aiohttp
import pytest

from router.simulator import EngineConfig, Faults, serve_engine
from tests.simulator.talk import MESSAGES, PROMPT, ask, complete, stream, until

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
LONG = {"prompt": PROMPT, "max_tokens": 50, "stream": True}


async def received(client, engine, body=LONG, path=COMPLETIONS) -> tuple[bytes, str]:
    """What arrives of a stream, and how it ends."""
    got = b""
    async with client.post(engine.url + path, json=body) as reply:
        try:
            async for part in reply.content.iter_any():
                got += part
        except aiohttp.ClientError as error:
            return got, type(error).__name__
    return got, "complete"


class TestControl:
    async def test_faults_are_set_shown_and_cleared_over_http(self, client, engine):
        async with client.post(engine.url + "/sim/faults", json={"status": 503}) as reply:
            shown = await reply.json()
        assert shown["status"] == 503
        assert engine.faults == Faults(status=503)
        await ask(client, engine, status=503, prompt="a")
        async with client.delete(engine.url + "/sim/faults"):
            pass
        assert await complete(client, engine)

    async def test_a_fault_that_does_not_exist_is_400_and_changes_nothing(self, client, engine):
        async with client.post(engine.url + "/sim/faults", json={"stalled": True}) as reply:
            assert (reply.status, await reply.json()) == (400, {"error": "stalled: no such fault"})
        assert engine.faults == Faults()

    async def test_faults_with_a_duration_end_by_themselves(self, client, engine):
        async with client.post(engine.url + "/sim/faults", json={"stall": True, "for_s": 0.01}):
            pass
        assert await complete(client, engine)

    async def test_a_newer_fault_is_not_ended(self, client, engine):
        others = len(engine.engine._tasks)
        async with client.post(engine.url + "/sim/faults", json={"stall": True, "for_s": 0.01}):
            pass
        await engine.set_faults(status=500)
        await until(lambda: len(engine.engine._tasks) == others)
        assert engine.faults.status == 500

    async def test_an_engine_can_be_born_with_faults(self, client):
        async with serve_engine(EngineConfig(faults=Faults(status=500, next=1))) as engine:
            await ask(client, engine, status=500, prompt="a")
            await ask(client, engine, prompt="a")


class TestStatus:
    @pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
    async def test_the_next_requests_get_an_error_in_vllms_shape(self, client, engine, status):
        await engine.set_faults(status=status, next=1)
        answer = await ask(client, engine, status=status, prompt="a", stream=True)
        assert answer["error"]["code"] == status
        assert await complete(client, engine)

    async def test_only_one_leg_or_one_path_can_be_sick(self, client, engine):
        await engine.set_faults(status=500, only="prefill")
        await ask(client, engine, prompt="a")
        params = {"do_remote_decode": True}
        await ask(client, engine, status=500, prompt="a", kv_transfer_params=params)
        await engine.set_faults(status=500, paths=("/health",))
        await ask(client, engine, prompt="a")
        async with client.get(engine.url + "/health") as reply:
            assert reply.status == 500


class TestSilence:
    async def test_a_stalled_engine_sends_headers_and_no_token_until_it_is_well(
        self, client, engine
    ):
        await engine.set_faults(stall=True)
        async with client.post(engine.url + COMPLETIONS, json=LONG) as reply:
            assert reply.status == 200
            assert engine.state["waiting"] == 1
            await engine.clear_faults()
            assert (await reply.read()).endswith(b"data: [DONE]\n\n")

    async def test_a_hanging_engine_sends_no_headers(self, client, engine):
        await engine.set_faults(hang=True)
        task = asyncio.create_task(received(client, engine))
        await until(lambda: engine.requests)
        await asyncio.sleep(0)
        assert not task.done()
        assert engine.state["waiting"] == engine.state["running"] == 0
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: engine.state["connections"] == 0)

    async def test_a_delayed_request_is_answered_late(self, client, engine):
        await engine.set_faults(delay_s=0.01)
        assert await complete(client, engine)

    async def test_a_frozen_stream_stays_open_and_lets_go_when_the_client_leaves(
        self, client, engine
    ):
        await engine.set_faults(freeze_after_tokens=3)
        async with client.post(engine.url + COMPLETIONS, json=LONG) as reply:
            got = b""
            while got.count(b"data: ") < 3:
                got += await reply.content.readany()
            assert engine.state["connections"] == 1
            reply.close()
        await until(lambda: engine.state["connections"] == 0)
        assert got.count(b"data: ") == 3
        await until(lambda: engine.state["running"] == 0)

    async def test_any_bytes_may_stand_in_place_of_an_answer(self, client, engine):
        await engine.set_faults(wire="HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n\xff\x00")
        got, how = await received(client, engine)
        assert (got, how) == (b"\xff\x00", "ClientPayloadError")
        await engine.set_faults(wire="SSH-2.0\r\n", paths=("/metrics",))
        assert await complete(client, engine)
        with pytest.raises(aiohttp.ClientError):
            await client.get(f"{engine.url}/metrics")

    async def test_a_slow_engine_is_slow_by_its_factor(self, client):
        async with serve_engine(EngineConfig(step_s=30.0)) as engine:
            await engine.set_faults(slow=1e-6)
            assert await complete(client, engine)


class TestCut:
    async def test_a_stream_is_cut_in_the_middle_of_a_frame(self, client, engine):
        await engine.set_faults(cut_after_tokens=3)
        got, how = await received(client, engine)
        assert how == "ClientPayloadError"
        *frames, rest = got.split(b"\n\n")
        assert len(frames) == 3
        assert rest.startswith(b"data: {")
        assert not rest.endswith(b"}")

    async def test_a_whole_answer_is_cut_in_its_body(self, client, engine):
        await engine.set_faults(cut_after_tokens=0)
        got, how = await received(client, engine, {**LONG, "stream": False})
        assert how == "ClientPayloadError"
        assert got.startswith(b'{"id":')

    async def test_the_cut_request_leaves_nothing_behind(self, client, engine):
        await engine.set_faults(cut_after_tokens=1)
        await received(client, engine)
        await until(lambda: engine.state["connections"] == 0)
        state = engine.state
        assert (state["running"], state["waiting"], state["kv_usage"]) == (0, 0, 0)

    async def test_a_stream_can_end_in_an_error_event(self, client, engine):
        await engine.set_faults(error_after_tokens=2)
        *tokens, error, done = await stream(client, engine, COMPLETIONS, prompt=PROMPT)
        assert len(tokens) == 2
        assert b'"code": 500' in error
        assert done == b"[DONE]"
        await ask(client, engine, status=500, prompt=PROMPT)

    async def test_a_chat_is_cut_after_its_role(self, client, engine):
        await engine.set_faults(cut_after_tokens=0)
        body = {"messages": MESSAGES, "stream": True}
        got, _ = await received(client, engine, body, CHAT)
        assert got.count(b"\n\n") == 1
        assert b'"role":"assistant"' in got


class TestConnections:
    async def test_a_connection_is_reset_when_it_is_accepted(self, client, engine):
        await engine.set_faults(reset="accept")
        with pytest.raises((ConnectionResetError, aiohttp.ClientError)):
            await ask(client, engine, prompt="a")
        assert not engine.requests

    async def test_a_connection_is_reset_when_the_request_has_been_read(self, client, engine):
        await engine.set_faults(reset="request", next=1)
        with pytest.raises(aiohttp.ClientOSError, match="reset"):
            await ask(client, engine, prompt="a")
        assert len(engine.requests) == 1
        assert await complete(client, engine)

    async def test_a_connection_is_reset_behind_a_part_of_a_head(self, engine):
        await engine.set_faults(wire="HTTP/1.1 200 O", reset="wire", paths=("/health",))
        port = int(engine.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n")
        assert await reader.readexactly(14) == b"HTTP/1.1 200 O"
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()

    async def test_an_engine_that_refuses_listens_again_at_the_same_port(self, client, engine):
        await engine.set_faults(refuse=True)
        for _ in range(2):
            with pytest.raises(aiohttp.ClientConnectorError):
                await ask(client, engine, prompt="a")
        await engine.clear_faults()
        assert await complete(client, engine)

    async def test_open_connections_outlive_a_closed_listener(self, client, engine):
        await engine.set_faults(stall=True)
        async with client.post(engine.url + COMPLETIONS, json=LONG) as reply:
            await engine.set_faults(refuse=True)
            assert (await reply.read()).endswith(b"data: [DONE]\n\n")

    async def test_idle_connections_are_closed_at_once(self, client):
        faults = Faults(close_idle=True)
        async with serve_engine(EngineConfig(keep_alive_s=3600, faults=faults)) as engine:
            async with client.post(engine.url + COMPLETIONS, json={"prompt": "a"}) as reply:
                await reply.read()
                assert reply.headers.get("connection") is None
            await until(lambda: engine.state["connections"] == 0)

    async def test_idle_connections_are_closed_after_the_keep_alive_time(self, client):
        async with serve_engine(EngineConfig(keep_alive_s=0.01)) as engine:
            await complete(client, engine)
            await until(lambda: engine.state["connections"] == 0)

    async def test_all_connections_can_be_dropped(self, client, engine):
        await engine.set_faults(stall=True)
        task = asyncio.create_task(received(client, engine))
        await until(lambda: engine.state["waiting"])
        engine.drop_connections()
        assert (await task)[1] in ("ClientPayloadError", "ClientOSError")
        await until(lambda: engine.state["waiting"] == 0)

    async def test_they_can_be_dropped_over_http(self, client, engine):
        with pytest.raises(aiohttp.ClientError):
            await ask(client, engine, "/sim/drop")
        assert await complete(client, engine)
