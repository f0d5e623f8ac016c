import re
import struct
from base64 import b64decode
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from router.core.wire import exposition
from router.simulator import EngineConfig, serve_engine
from tests.simulator.talk import MESSAGES, PROMPT, ask, complete, until

VLLM_NAMES = """
num_requests_running num_requests_waiting num_requests_waiting_by_reason kv_cache_usage_perc
prefix_cache_queries_total prefix_cache_hits_total external_prefix_cache_queries_total
external_prefix_cache_hits_total num_preemptions_total prompt_tokens_total
prompt_tokens_by_source_total prompt_tokens_cached_total generation_tokens_total
request_success_total admission_rejections_total nixl_num_failed_transfers_total
nixl_num_kv_expired_reqs_total nixl_num_notifications_after_expiry_total
time_to_first_token_seconds_bucket time_to_first_token_seconds_count
inter_token_latency_seconds_sum e2e_request_latency_seconds_count engine_sleep_state
cache_config_info
"""


async def metrics(client, engine) -> dict[str, float]:
    """Every series by its name and labels."""
    async with client.get(engine.url + "/metrics") as reply:
        assert reply.headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"
        lines = (await reply.text()).splitlines()
    return {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")
    }


def value(series: dict[str, float], name: str, labels: str = "") -> float:
    inner = 'engine="0",model_name="sim"' + (f",{labels}" if labels else "")
    return series[f"vllm:{name}{{{inner}}}"]


class TestMetrics:
    async def test_the_names_are_vllms_and_every_line_is_well_formed(self, client, engine):
        await complete(client, engine)
        async with client.get(engine.url + "/metrics") as reply:
            text = await reply.text()
        for name in VLLM_NAMES.split():
            assert f"\nvllm:{name}{{" in text
        sample = re.compile(r'vllm:\w+\{(\w+="[^"]*",?)+\} [0-9.e+-]+')
        comment = re.compile(r"# (HELP|TYPE) vllm:\w+ \S.*")
        for line in text.splitlines():
            assert sample.fullmatch(line) or comment.fullmatch(line)

    async def test_prometheus_own_parser_reads_it(self, client, engine):
        await complete(client, engine)
        async with client.get(engine.url + "/metrics") as reply:
            families = list(text_string_to_metric_families(await reply.text()))
        kinds = {family.name: family.type for family in families}
        assert kinds["vllm:num_requests_running"] == "gauge"
        assert kinds["vllm:prompt_tokens"] == "counter"
        assert kinds["vllm:time_to_first_token_seconds"] == "histogram"

    async def test_tokens_are_counted_by_where_they_came_from(self, client, engine):
        size = (await ask(client, engine, prompt=PROMPT, max_tokens=3))["usage"]["prompt_tokens"]
        await ask(client, engine, prompt=PROMPT, max_tokens=4)
        series = await metrics(client, engine)
        cached = (size - 1) // 16 * 16
        name = "prompt_tokens_by_source_total"
        assert value(series, name, 'source="local_compute"') == 2 * size - cached
        assert value(series, name, 'source="local_cache_hit"') == cached
        assert value(series, "prompt_tokens_total") == 2 * size
        assert value(series, "generation_tokens_total") == 7
        assert value(series, "request_success_total", 'finished_reason="length"') == 2
        assert value(series, "time_to_first_token_seconds_count") == 2
        assert value(series, "inter_token_latency_seconds_count") == 5

    async def test_running_and_waiting_requests_are_visible(self, client):
        async with serve_engine(EngineConfig(max_num_seqs=1, step_s=30.0)) as engine:
            body = {"prompt": PROMPT, "stream": True}
            async with (
                client.post(engine.url + "/v1/completions", json=body),
                client.post(engine.url + "/v1/completions", json=body),
            ):
                await until(lambda: engine.state["running"])
                series = await metrics(client, engine)
        assert value(series, "num_requests_running") == 1
        assert value(series, "num_requests_waiting") == 1
        assert value(series, "num_requests_waiting_by_reason", 'reason="capacity"') == 1
        assert 0 < value(series, "kv_cache_usage_perc") < 1


async def test_health_ping_and_version(client, engine):
    for path in ("/health", "/ping"):
        async with client.get(engine.url + path) as reply:
            assert (reply.status, await reply.read()) == (200, b"")
            assert "content-type" not in reply.headers
    async with client.get(engine.url + "/version") as reply:
        assert await reply.json() == {"version": "0.32.0"}
    async with client.get(engine.url + "/load") as reply:
        assert await reply.json() == {"server_load": 0}


async def test_models_are_listed_with_their_adapters(client):
    config = EngineConfig(model="base", loras=["fine"])
    async with serve_engine(config) as engine, client.get(engine.url + "/v1/models") as reply:
        document = await reply.json()
    base, fine = document["data"]
    assert (base["id"], base["parent"], base["max_model_len"]) == ("base", None, 32_768)
    assert (fine["id"], fine["parent"], fine["max_model_len"]) == ("fine", "base", None)
    assert " ".join(base) == "id object created owned_by root parent max_model_len permission"


async def test_an_adapter_can_be_loaded_at_run_time(client):
    async with serve_engine(EngineConfig(model="base")) as engine:
        body = {"lora_name": "fine", "lora_path": "/fine"}
        async with client.post(engine.url + "/v1/load_lora_adapter", json=body) as reply:
            assert reply.status == 200
        async with client.get(engine.url + "/v1/models") as reply:
            assert [card["id"] for card in (await reply.json())["data"]] == ["base", "fine"]
        asked = {"model": "fine", "prompt": "Hi", "max_tokens": 1}
        async with client.post(engine.url + "/v1/completions", json=asked) as reply:
            assert reply.status == 200
        async with client.get(engine.url + exposition.PAGES[0]) as reply:
            assert exposition.read(await reply.read()).adapters == ("fine",)


async def test_series_selection_needs_the_path_with_a_slash(client, engine):
    await complete(client, engine)
    pages, selection = [], exposition.PAGES[0]
    for path in ("/metrics", selection, selection.replace("/?", "?")):
        async with client.get(engine.url + path) as reply:
            pages.append(await reply.read())
    whole, selected, unselected = pages
    assert whole == unselected
    assert exposition.read(whole) == exposition.read(selected)
    assert b"# TYPE vllm:num_requests_running gauge" in selected
    assert 4 * len(selected) < len(whole)


@pytest.mark.parametrize("path", ["/sleep", "/wake_up", "/reset_prefix_cache"])
async def test_dangerous_routes_exist_and_their_use_is_recorded(client, engine, path):
    await ask(client, engine, path)
    assert engine.state["paths"] == {f"POST {path}": 1}
    assert [request.path for request in engine.requests] == [path]


async def test_a_sleeping_engine_gives_no_token_until_it_wakes(client, engine):
    await ask(client, engine, "/sleep")
    async with client.post(
        engine.url + "/v1/completions", json={"prompt": PROMPT, "stream": True}
    ) as reply:
        assert engine.state["waiting"] == 1
        await ask(client, engine, "/wake_up")
        assert b"[DONE]" in await reply.read()


async def test_the_router_reads_prefix_cache_size_and_hits(client, engine):
    await complete(client, engine)
    answer = await ask(client, engine, prompt=PROMPT)
    size = answer["usage"]["prompt_tokens"]
    async with client.get(engine.url + "/metrics") as reply:
        gauges = exposition.read(await reply.read())
    assert gauges.cache_tokens == engine.config.block_size * engine.config.total_blocks
    assert gauges.cache_queries == 2 * size
    assert gauges.cache_hits == (size - 1) // 16 * 16


async def test_a_reset_prefix_cache_finds_nothing(client, engine):
    await complete(client, engine)
    await ask(client, engine, "/reset_prefix_cache")
    await complete(client, engine)
    assert engine.state["tokens"]["local_cache_hit"] == 0


class TestPooling:
    async def test_embeddings_depend_on_the_input(self, client, engine):
        answer = await ask(client, engine, "/v1/embeddings", input=["a", "b", "a"])
        first, second, third = (item["embedding"] for item in answer["data"])
        assert first == third != second
        await ask(client, engine, "/v1/embeddings", input="a", model="nope", status=404)

    async def test_embeddings_have_the_requested_size_and_format(self, client, engine):
        body: dict[str, Any] = {"input": "a", "dimensions": 3}
        (plain,) = (await ask(client, engine, "/v1/embeddings", **body))["data"]
        packed = await ask(client, engine, "/v1/embeddings", **body, encoding_format="base64")
        floats = struct.unpack("<3f", b64decode(packed["data"][0]["embedding"]))
        assert floats == pytest.approx(plain["embedding"])

    @pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
    async def test_documents_that_share_words_with_the_query_come_first(self, client, engine, path):
        body: dict[str, Any] = {
            "query": "a red fox",
            "documents": ["the dog", "a fox is red", "red wine"],
        }
        answer = await ask(client, engine, path, **body, top_n=2)
        assert [result["index"] for result in answer["results"]] == [1, 2]
        assert " ".join(answer["results"][0]) == "index document relevance_score"
        assert set(answer) == {"id", "model", "usage", "results"}

    async def test_pairs_of_texts_get_scores(self, client, engine):
        one = await ask(client, engine, "/score", text_1="a", text_2=["b", "a"])
        same = await ask(client, engine, "/v1/score", queries=["a", "a"], documents=["b", "a"])
        assert one["data"] == same["data"]
        assert one["data"][0]["score"] < one["data"][1]["score"]
        await ask(client, engine, "/score", text_1=["a"] * 3, text_2=["b"] * 2, status=400)

    async def test_texts_get_classes_and_pooled_numbers(self, client, engine):
        (found,) = (await ask(client, engine, "/classify", input="a"))["data"]
        assert " ".join(found) == "index label probs num_classes"
        assert sum(found["probs"]) == pytest.approx(1)
        (pooled,) = (await ask(client, engine, "/pooling", input=[1, 2, 3]))["data"]
        assert len(pooled["data"]) == 8

    @pytest.mark.parametrize("documents", [None, [{"text": "a"}]])
    async def test_documents_that_are_no_texts_are_refused(self, client, engine, documents):
        await ask(client, engine, "/rerank", query="a", documents=documents, status=400)


async def test_count_tokens_equals_the_messages_usage(client, engine):
    body: dict[str, Any] = {"system": "Rhyme.", "messages": MESSAGES[1:], "tools": [{"name": "f"}]}
    counted = await ask(client, engine, "/v1/messages/count_tokens", **body)
    answer = await ask(client, engine, "/v1/messages", **body, max_tokens=1)
    count = answer["usage"]["input_tokens"]
    assert counted.pop("context_management") == {"original_input_tokens": count}
    assert counted == {"input_tokens": count}
    await ask(client, engine, "/v1/messages/count_tokens", **body, model="nope", status=404)


class TestRecords:
    async def test_requests_are_shown_as_they_came_in(self, client, engine):
        raw = b'{"prompt": "a", "max_tokens":1, "big": 12345678901234567890123}'
        headers = {"content-type": "application/json", "X-Session": "s1"}
        async with client.post(engine.url + "/v1/completions", data=raw, headers=headers):
            pass
        async with client.get(engine.url + "/sim/requests") as reply:
            (seen,) = (await reply.json())["requests"]
        assert (seen["method"], seen["path"]) == ("POST", "/v1/completions")
        assert seen["headers"]["x-session"] == "s1"
        assert seen["raw"] == raw.decode()
        assert engine.requests[0].raw == raw

    async def test_probes_are_counted_and_not_remembered(self, client, engine):
        for _ in range(3):
            async with client.get(engine.url + "/health"):
                pass
        assert engine.state["paths"]["GET /health"] == 3
        assert not engine.requests

    async def test_only_so_many_are_remembered(self, client):
        async with serve_engine(EngineConfig(request_log=2)) as engine:
            for prompt in "abc":
                await complete(client, engine, prompt=prompt)
            assert [request.body["prompt"] for request in engine.requests] == ["b", "c"]

    async def test_paths_are_counted_even_if_nothing_is_remembered(self, client):
        async with serve_engine(EngineConfig(request_log=0)) as engine:
            await complete(client, engine)
            assert not engine.requests
            assert engine.state["paths"] == {"POST /v1/completions": 1}

    async def test_they_can_be_forgotten(self, client, engine):
        await complete(client, engine)
        async with client.delete(engine.url + "/sim/requests"):
            assert not engine.requests

    async def test_a_request_id_that_comes_twice_is_counted(self, client, engine):
        for name in ("a", "b", "a"):
            await ask(client, engine, prompt=PROMPT, headers={"X-Request-Id": name})
        assert engine.state["duplicate_request_ids"] == 1
