"""Prefill on one engine, decode on another, over real sockets: right, and every way of wrong."""

import asyncio
import json
from typing import Any

import orjson
import pytest

from router.simulator import EngineConfig, serve_engine
from tests.simulator.talk import (
    ASK_REMOTE,
    MESSAGES,
    PROMPT,
    ask,
    chat,
    chunks,
    complete,
    prefilled,
    stream,
    until,
)

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
FAILED = {
    "error": {
        "message": "Internal server error",
        "type": "InternalServerError",
        "param": None,
        "code": 500,
    }
}
KEYS = (
    "do_remote_prefill do_remote_decode remote_block_ids remote_engine_id remote_request_id"
    " remote_host remote_port tp_size dcp_size pp_size remote_num_tokens remote_blocks_expiry_time"
    " transfer_mode remote_prefill_cached_tokens"
)


def closed(params: dict[str, object]) -> dict[str, object]:
    """The parameters, with a port without a listener."""
    return {**params, "remote_port": 1}


class TestParameters:
    async def test_they_have_the_shape_of_0_32(self, client, prefill):
        params = await prefilled(client, prefill)
        assert " ".join(params) == KEYS
        size = (await ask(client, prefill, "/tokenize", prompt=PROMPT))["count"]
        assert params["remote_num_tokens"] == size
        assert len(params["remote_block_ids"][0]) == -(-size // 16)
        assert (params["remote_host"], params["remote_port"]) == (prefill.host, prefill.port)
        assert params["remote_engine_id"] == prefill.state["engine_id"]
        assert (params["do_remote_prefill"], params["do_remote_decode"]) == (True, False)
        assert (params["transfer_mode"], params["remote_blocks_expiry_time"]) == ("pull", None)

    @pytest.mark.parametrize("version", ["0.29.0", "0.32.0"])
    async def test_a_decode_engine_reports_the_prompt_as_cached_by_default(self, client, version):
        config = EngineConfig(version=version, prompt_tokens_details=True)
        async with serve_engine(config) as prefill, serve_engine(config) as decode:
            params = await prefilled(client, prefill)
            answer = await ask(client, decode, prompt=PROMPT, kv_transfer_params=params)
        details = answer["usage"]["prompt_tokens_details"]
        is_told = version == "0.32.0"
        assert ("remote_prefill_cached_tokens" in params) is is_told
        assert (details["cached_tokens"] == 0) is is_told

    async def test_the_request_id_is_in_them(self, client, prefill):
        answer = await ask(
            client,
            prefill,
            prompt=PROMPT,
            kv_transfer_params=ASK_REMOTE,
            headers={"X-Request-Id": "mine"},
        )
        assert answer["kv_transfer_params"]["remote_request_id"].startswith("cmpl-mine-0-")

    async def test_unknown_keys_and_large_integers_can_be_put_in(self, client):
        extra = {"new_in_0_40": {"a": [1.0]}, "large": 2**63 + 1}
        async with serve_engine(EngineConfig(kv_params_extra=extra)) as engine:
            params = await prefilled(client, engine)
        assert {name: params[name] for name in extra} == extra

    async def test_a_stream_shows_none_and_keeps_the_blocks(self, client, prefill):
        whole = await stream(
            client, prefill, COMPLETIONS, prompt=PROMPT, max_tokens=1, kv_transfer_params=ASK_REMOTE
        )
        assert b"kv_transfer_params" not in b"".join(whole)
        assert prefill.state["pinned_blocks"] > 0

    async def test_an_answer_that_ended_by_itself_has_none(self, client, prefill):
        assert await prefilled(client, prefill, prompt=f"{PROMPT}<<eos:1>>") is None
        assert prefill.state["pinned_blocks"] == 0

    async def test_that_is_a_matter_of_version(self, client):
        async with serve_engine(EngineConfig(kv_params_on_stop=True)) as engine:
            assert await prefilled(client, engine, prompt=f"{PROMPT}<<eos:1>>")

    async def test_an_engine_without_a_connector_ignores_them(self, client):
        async with serve_engine(EngineConfig(connector="none")) as engine:
            assert await prefilled(client, engine) is None
            params = {"do_remote_prefill": True}
            assert await complete(client, engine, kv_transfer_params=params)

    async def test_several_choices_keep_as_many_copies_and_show_one(self, client, prefill):
        await prefilled(client, prefill, n=3)
        assert prefill.state["references"]["pending"] == 3


class TestTransfer:
    @pytest.mark.parametrize("how", ["completions", "chat", "stream"])
    async def test_two_engines_give_the_answer_of_one(self, client, engine, prefill, decode, how):
        params = (
            await ask(
                client,
                prefill,
                CHAT,
                messages=MESSAGES,
                max_tokens=1,
                kv_transfer_params=ASK_REMOTE,
            )
        )["kv_transfer_params"]
        if how == "completions":
            params = await prefilled(client, prefill)
            text = await complete(client, decode, kv_transfer_params=params)
            assert text == await complete(client, engine)
        elif how == "chat":
            text = await chat(client, decode, kv_transfer_params=params)
            assert text == await chat(client, engine)
        else:
            parts = await chunks(
                client, decode, CHAT, messages=MESSAGES, max_tokens=8, kv_transfer_params=params
            )
            deltas = [part["choices"][0]["delta"]["content"] for part in parts]
            assert "".join(deltas) == await chat(client, engine)
        tokens = decode.state["tokens"]
        assert tokens["external_kv_transfer"] == tokens["prompt"] > 0
        assert prefill.state["references"]["read"] == 1

    async def test_the_metrics_of_both_show_it(self, client, prefill, decode):
        params = await prefilled(client, prefill)
        await complete(client, decode, kv_transfer_params=params)
        count = params["remote_num_tokens"]
        async with client.get(decode.url + "/metrics") as reply:
            text = await reply.text()
        assert f'source="external_kv_transfer"}} {float(count)}' in text
        assert 'source="local_compute"} 0.0' in text

    async def test_a_request_without_parameters_is_computed_here(self, client, engine, decode):
        assert await complete(client, decode) == await complete(client, engine)
        assert decode.state["tokens"]["external_kv_transfer"] == 0

    async def test_many_at_once_get_their_own(self, client, engine, prefill, decode):
        async def both(number: int) -> tuple[str, str]:
            prompt = f"{number}: {PROMPT}"
            params = await prefilled(client, prefill, prompt=prompt)
            text = await complete(client, decode, prompt=prompt, kv_transfer_params=params)
            return text, await complete(client, engine, prompt=prompt)

        pairs = await asyncio.gather(*(both(number) for number in range(20)))
        assert all(disaggregated == single for disaggregated, single in pairs)
        assert prefill.state["pinned_blocks"] == 0


class TestPush:
    @pytest.fixture
    async def pair(self):
        config = EngineConfig(connector="nixl-push")
        async with serve_engine(config) as prefill, serve_engine(config) as decode:
            yield prefill, decode

    async def test_two_engines_give_the_answer_of_one_for_one_id(self, client, engine, pair):
        named: dict[str, Any] = {
            "headers": {"X-Request-Id": "a"},
            "prompt": PROMPT,
            "max_tokens": 8,
        }
        first = await ask(client, pair[0], kv_transfer_params=ASK_REMOTE, **named)
        params = first["kv_transfer_params"]
        assert params["transfer_mode"] == "push"
        answer = await ask(client, pair[1], kv_transfer_params=params, **named)
        assert answer["choices"][0]["text"] == await complete(client, engine)
        assert pair[1].state["loads"]["good"] == 1

    async def test_for_another_id_nothing_arrives(self, client, pair):
        params = await prefilled(client, pair[0])
        asked = asyncio.create_task(complete(client, pair[1], kv_transfer_params=params))
        await until(lambda: pair[1].state["loading"] == 1)
        await complete(client, pair[1])  # another one has its whole answer meanwhile
        assert pair[1].state["loading"] == 1
        asked.cancel()
        await until(lambda: pair[1].state["loading"] == 0)


class TestSilentlyWrong:
    async def test_a_reference_used_twice(self, client, engine, prefill, decode):
        params = await prefilled(client, prefill)
        await complete(client, decode, kv_transfer_params=params)
        text = await complete(client, decode, kv_transfer_params=params)
        assert text != await complete(client, engine)
        assert prefill.state["references"]["reused"] == 1
        assert decode.state["loads"] == {"good": 1, "wrong": 1, "failed": 0}

    async def test_one_reference_for_several_choices(self, client, engine, prefill, decode):
        params = await prefilled(client, prefill)
        answer = await ask(
            client, decode, prompt=PROMPT, n=2, max_tokens=8, kv_transfer_params=params
        )
        right = await complete(client, engine)
        assert sorted(choice["text"] == right for choice in answer["choices"]) == [False, True]

    async def test_parameters_of_another_prompt(self, client, engine, prefill, decode):
        params = await prefilled(client, prefill)
        other = PROMPT.replace("argv", "args")
        text = await complete(client, decode, prompt=other, kv_transfer_params=params)
        assert text != await complete(client, engine, prompt=other)

    async def test_a_number_that_lost_its_type_is_counted(self, client, decode):
        async with serve_engine(EngineConfig(kv_params_extra={"n": 1})) as prefill:
            params = await prefilled(client, prefill)
            await complete(client, decode, kv_transfer_params={**params, "n": 1.0})
            assert prefill.state["references"]["altered"] == 1


class TestFailedLoads:
    @pytest.mark.parametrize("change", [closed, lambda params: {**params, "remote_engine_id": "x"}])
    async def test_a_whole_answer_is_500(self, client, prefill, decode, change):
        params = change(await prefilled(client, prefill))
        answer = await ask(client, decode, status=500, prompt=PROMPT, kv_transfer_params=params)
        assert answer == FAILED
        assert decode.state["loads"]["failed"] == 1
        assert decode.state["kv_usage"] == 0

    async def test_a_completion_stream_is_200_with_the_error_as_its_first_event(
        self, client, prefill, decode
    ):
        params = closed(await prefilled(client, prefill))
        events = await stream(client, decode, COMPLETIONS, prompt=PROMPT, kv_transfer_params=params)
        assert events == [json.dumps(FAILED).encode(), b"[DONE]"]

    async def test_a_chat_stream_has_the_role_before_the_error(self, client, prefill, decode):
        body: dict[str, Any] = {
            "messages": MESSAGES,
            "max_tokens": 1,
            "kv_transfer_params": ASK_REMOTE,
        }
        params = closed((await ask(client, prefill, CHAT, **body))["kv_transfer_params"])
        role, error, done = await stream(
            client, decode, CHAT, messages=MESSAGES, kv_transfer_params=params
        )
        assert orjson.loads(role)["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert (orjson.loads(error), done) == (FAILED, b"[DONE]")

    async def test_a_message_stream_ends_in_a_named_error(self, client, prefill, decode):
        params = closed(await prefilled(client, prefill))
        body = {"messages": MESSAGES[1:], "max_tokens": 4, "kv_transfer_params": params}
        events = await stream(client, decode, "/v1/messages", **body)
        assert orjson.loads(events[-1])["type"] == "error"

    async def test_they_can_be_ordered(self, client, engine, prefill, decode):
        await decode.set_faults(fail_kv_loads=1)
        for status in (500, 200):
            params = await prefilled(client, prefill)
            await ask(client, decode, status=status, prompt=PROMPT, kv_transfer_params=params)

    async def test_blocks_that_are_gone_are_counted_by_both_engines(self, client, prefill, decode):
        await prefill.set_faults(expire_references=1)
        for status in (500, 200):
            params = await prefilled(client, prefill)
            await ask(client, decode, status=status, prompt=PROMPT, kv_transfer_params=params)
        references, loads = prefill.state["references"], decode.state["loads"]
        assert {"expired": 1, "read": 1, "pending": 0, "late": 0}.items() <= references.items()
        assert prefill.state["pinned_blocks"] == 0
        assert {"good": 1, "wrong": 0, "failed": 1}.items() <= loads.items()

    async def test_by_policy_the_prompt_is_computed_instead(self, client, engine, prefill):
        config = EngineConfig(kv_load_failure_policy="recompute")
        async with serve_engine(config) as decode:
            params = closed(await prefilled(client, prefill))
            text = await complete(client, decode, kv_transfer_params=params)
            assert decode.state["tokens"]["external_kv_transfer"] == 0
        assert text == await complete(client, engine)

    async def test_a_dead_prefill_engine_fails_the_load(self, client, decode):
        async with serve_engine(EngineConfig()) as prefill:
            params = await prefilled(client, prefill)
        await ask(client, decode, status=500, prompt=PROMPT, kv_transfer_params=params)


class TestDeath:
    async def kill(self, client, engine, **body) -> None:
        answer = await ask(client, engine, status=500, **{"prompt": PROMPT, **body})
        assert answer["error"]["message"].startswith("EngineCore encountered an issue.")
        await ask(client, engine, status=500, prompt=PROMPT)
        async with client.get(engine.url + "/health") as reply:
            assert reply.status == 503

    async def test_partial_parameters(self, client, decode):
        await self.kill(client, decode, kv_transfer_params={"do_remote_prefill": True})

    async def test_one_reference_for_several_prompts(self, client, prefill, decode):
        params = await prefilled(client, prefill)
        await self.kill(client, decode, prompt=[PROMPT, PROMPT], kv_transfer_params=params)

    async def test_a_prompt_of_more_blocks_than_were_prefilled(self, client, prefill, decode):
        params = await prefilled(client, prefill)
        await self.kill(client, decode, prompt=PROMPT * 2, kv_transfer_params=params)

    async def test_takes_the_others_with_it(self, client, decode):
        await decode.set_faults(stall=True)
        events = asyncio.create_task(stream(client, decode, COMPLETIONS, prompt=PROMPT))
        await until(lambda: decode.state["waiting"])
        await self.kill(client, decode, kv_transfer_params={"do_remote_prefill": True})
        error, done = await events
        assert orjson.loads(error)["error"]["code"] == 500
        assert done == b"[DONE]"

    async def test_the_server_stops_after_the_requested_time(self, client):
        async with serve_engine(EngineConfig(stop_after_death_s=0.0)) as engine:
            await ask(client, engine, "/sim/die")
            await until(lambda: engine._listener is None)
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(engine.host, engine.port)


class TestWithoutADecode:
    async def test_kept_blocks_are_free_when_the_lease_ends(self, client):
        async with serve_engine(EngineConfig(kv_lease_s=0.01)) as prefill:
            await prefilled(client, prefill)
            await until(lambda: prefill.state["pinned_blocks"] == 0)
            assert prefill.state["references"]["expired"] == 1
            assert prefill.state["kv_usage"] == 0
            async with client.get(prefill.url + "/metrics") as reply:
                assert 'nixl_num_kv_expired_reqs_total{engine="0",model_name="sim"} 1.0' in (
                    await reply.text()
                )

    async def test_a_request_that_waits_for_kept_blocks_runs_when_the_lease_ends(self, client):
        config = EngineConfig(kv_lease_s=0.02, max_model_len=64, total_blocks=4)
        async with serve_engine(config) as prefill:
            await prefilled(client, prefill, prompt="x" * 230)
            assert await complete(client, prefill, prompt="y" * 230, max_tokens=1)

    @pytest.mark.parametrize("fault", ["unknown model", "full queue"])
    async def test_a_refused_decode_gives_them_back(self, client, prefill, fault):
        async with serve_engine(EngineConfig(max_num_queued_reqs=0)) as decode:
            params = await prefilled(client, prefill)
            model = "nope" if fault == "unknown model" else "sim"
            status = 404 if fault == "unknown model" else 503
            await ask(
                client, decode, status=status, prompt=PROMPT, model=model, kv_transfer_params=params
            )
            await until(lambda: prefill.state["pinned_blocks"] == 0)
        assert prefill.state["references"]["released"] == 1

    async def test_a_decode_that_leaves_the_queue_gives_them_back(self, client, prefill):
        async with serve_engine(EngineConfig()) as decode:
            await decode.set_faults(stall=True)
            params = await prefilled(client, prefill)
            body = {"prompt": PROMPT, "stream": True, "kv_transfer_params": params}
            async with client.post(decode.url + COMPLETIONS, json=body) as reply:
                reply.close()
            await until(lambda: prefill.state["references"]["released"] == 1)

    async def test_waiting_in_the_decode_queue_keeps_them_alive(self, client, prefill):
        async with serve_engine(EngineConfig(kv_lease_s=0.03)) as decode:
            await decode.set_faults(stall=True)
            params = await prefilled(client, prefill)
            body = {"prompt": PROMPT, "stream": True, "kv_transfer_params": params}
            async with client.post(decode.url + COMPLETIONS, json=body):
                path = "POST /sim/kv/heartbeat"
                await until(lambda: prefill.state["paths"].get(path, 0) >= 2)
