"""A data-parallel engine: one API server, several ranks with a batch and a cache each."""

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from router.simulator import EngineConfig, RunningEngine, serve_engine
from tests.simulator.talk import ask, complete

RANK = "x-data-parallel-rank"


def prompts(engine: RunningEngine) -> list[int]:
    """Prompt tokens that each rank has seen."""
    return [each.engine.machine.counters.prompt for each in (engine, *engine.ranks)]


async def test_the_header_chooses_the_rank(client: aiohttp.ClientSession) -> None:
    async with serve_engine(EngineConfig(data_parallel_size=3)) as engine:
        await complete(client, engine, headers={RANK: "2"})
        first, second, third = prompts(engine)
        assert (first, second) == (0, 0)
        assert third > 0


async def test_ranks_are_counted_from_the_first_one_here(
    client: aiohttp.ClientSession,
) -> None:
    """As in vLLM 0.32 (v1/engine/input_processor.py), whatever the labels of the metrics."""
    config = EngineConfig(data_parallel_size=2, data_parallel_start_rank=2)
    async with serve_engine(config) as engine:
        for rank in ("2", "3", "-1"):
            answer = await ask(
                client, engine, headers={RANK: rank}, status=400, prompt="a", max_tokens=1
            )
            assert f"data_parallel_rank {rank} is out of range [0, 2)" in answer["error"]["message"]
        await complete(client, engine, headers={RANK: "x"})
        assert prompts(engine)[1] == 0
        await complete(client, engine, headers={RANK: "1"})
        assert min(prompts(engine)) > 0


async def test_responses_have_the_rank_that_the_engine_chooses(
    client: aiohttp.ClientSession,
) -> None:
    async with serve_engine(EngineConfig(data_parallel_size=2)) as engine:
        for rank in ("1", "7"):
            await ask(client, engine, "/v1/responses", headers={RANK: rank}, input="Hello")
        assert prompts(engine)[1] == 0


async def test_without_it_the_least_loaded_rank_is_taken(client: aiohttp.ClientSession) -> None:
    async with serve_engine(EngineConfig(data_parallel_size=2, step_s=0.05)) as engine:
        body = {"prompt": "Hello", "max_tokens": 64, "stream": True, "ignore_eos": True}
        url = engine.url + "/v1/completions"
        async with client.post(url, json=body) as one, client.post(url, json=body) as other:
            await one.content.readany()
            await other.content.readany()
            assert min(prompts(engine)) > 0


async def test_the_metrics_have_a_series_for_each_rank(client: aiohttp.ClientSession) -> None:
    config = EngineConfig(data_parallel_size=2)
    async with (
        serve_engine(config) as engine,
        client.get(engine.url + "/metrics") as reply,
    ):
        text = await reply.text()
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    for family in families:
        assert {sample.labels["engine"] for sample in family.samples} == {"0", "1"}
