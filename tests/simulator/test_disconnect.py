"""A disconnect frees all resources, in any phase of the engine's work."""

import asyncio

import pytest

from router.simulator import EngineConfig, serve_engine
from tests.simulator.talk import PROMPT, complete, until

BODY = {"prompt": PROMPT, "max_tokens": 10_000}


def is_idle(engine) -> bool:
    state = engine.state
    return (state["running"], state["waiting"], state["kv_usage"]) == (0, 0, 0)


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("where", ["running", "waiting"])
async def test_a_client_that_leaves_aborts_its_request(client, engine, streamed, where):
    if where == "waiting":
        await engine.set_faults(stall=True)
    body = {**BODY, "stream": streamed, "n": 2}
    task = asyncio.create_task(client.post(engine.url + "/v1/completions", json=body))
    await until(lambda: engine.state[where] == 2)
    if streamed:
        (await task).close()
    else:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await until(lambda: is_idle(engine))
    assert engine.state["tokens"]["generated"] < 10_000
    assert not engine.state["finished"]


async def test_the_connection_of_an_answered_request_is_forgotten(client, engine):
    for _ in range(3):
        await complete(client, engine)
    (connection,) = engine._connections()
    assert not connection._on_lost


async def test_a_slot_that_becomes_free_goes_to_the_next(client):
    async with serve_engine(EngineConfig(max_num_seqs=1, eos_one_in=0)) as engine:
        body = {**BODY, "stream": True}
        async with client.post(engine.url + "/v1/completions", json=body) as first:
            await first.content.readany()
            second = asyncio.create_task(complete(client, engine))
            await until(lambda: engine.state["waiting"])
            first.close()
        assert await second


async def test_an_engine_stops_with_requests_in_all_stages(client):
    async with serve_engine(EngineConfig(max_num_seqs=1, eos_one_in=0)) as engine:
        tasks = [
            asyncio.create_task(client.post(engine.url + "/v1/completions", json=BODY))
            for _ in range(3)
        ]
        await until(lambda: engine.state["waiting"] == 2)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, Exception) for result in results)
