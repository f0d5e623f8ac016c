"""A router in front of simulated data-parallel engines: it finds their ranks, spreads requests over
them by itself, and loses none when an engine becomes its ranks."""

import asyncio
import json
from collections import Counter
from typing import Any

from router.simulator import EngineConfig, RunningEngine, serve_engine
from tests.e2e.process import Process, serving
from tests.forked import SECONDS
from tests.net.payloads import COMPLETIONS, DONE

RANKS = 4
OFTEN = ("--engine-stats-interval", "0.05", "--load-balancing-strategy", "least_loaded")
BODY = {"model": "sim", "prompt": "Hello", "ignore_eos": True, "stream": True}


async def shown(router: Process) -> dict[str, dict[str, Any]]:
    """The router's view of each endpoint."""
    answer = await (await router.client()).get("/endpoints")
    return {each["url"]: each for each in json.loads(answer.body)}


async def until_ranks(router: Process, *urls: str) -> None:
    """Wait until these endpoints are up, and no others."""
    async with asyncio.timeout(SECONDS):
        while True:
            found = await shown(router)
            if found.keys() == set(urls) and {e["state"] for e in found.values()} == {"up"}:
                return
            await asyncio.sleep(0.02)


async def ask(router: Process, tokens: int = 4, **more: Any) -> None:
    """A stream, which must be whole."""
    client = await router.client()
    answer = await client.ask(COMPLETIONS, {**BODY, "max_tokens": tokens, **more})
    assert answer.status == 200, answer
    assert answer.body.endswith(DONE), answer
    client.leave()


def ranks_of(engine: RunningEngine, ranks: int = RANKS) -> list[str]:
    """The endpoints of a data-parallel engine."""
    return [f"{engine.url}#{rank}" for rank in range(ranks)]


def asked(engine: RunningEngine) -> Counter[str | None]:
    """How many requests were pinned to each rank."""
    generations = [request for request in engine.requests if request.path == COMPLETIONS]
    return Counter(request.headers.get("x-data-parallel-rank") for request in generations)


async def test_each_rank_gets_its_share_by_the_routers_choice() -> None:
    config = EngineConfig(data_parallel_size=RANKS, step_s=0.01)
    async with (
        serve_engine(config) as engine,
        serve_engine(EngineConfig(step_s=0.01)) as plain,
        serving("--decode", engine.url, "--decode", plain.url, *OFTEN) as router,
    ):
        await until_ranks(router, *ranks_of(engine), plain.url)
        await asyncio.gather(*(ask(router, 40) for _ in range(5 * (RANKS + 1))))
        pinned = asked(engine)
        pinned.pop(None, None)  # a probe of the speed may have come before
        assert set(pinned) == set(map(str, range(RANKS)))
        assert max(pinned.values()) <= 2 * min(pinned.values())
        assert set(asked(plain)) == {None}


async def test_pools_may_have_different_numbers_of_ranks() -> None:
    many = EngineConfig(role="prefill", data_parallel_size=4, step_s=0.01)
    flags = ("--routing-threshold", "0", *OFTEN)
    few = EngineConfig(role="decode", data_parallel_size=2, step_s=0.01)
    async with (
        serve_engine(many) as prefill,
        serve_engine(few) as decode,
        serving("--prefill", prefill.url, "--decode", decode.url, *flags) as router,
    ):
        await until_ranks(router, *ranks_of(prefill, 4), *ranks_of(decode, 2))
        await asyncio.gather(*(ask(router, 40) for _ in range(24)))
        for engine, ranks in ((prefill, 4), (decode, 2)):
            pinned = asked(engine)
            pinned.pop(None, None)
            assert set(pinned) == set(map(str, range(ranks)))


async def test_no_request_is_lost_when_an_engine_becomes_its_ranks() -> None:
    config = EngineConfig(data_parallel_size=RANKS, step_s=0.01)
    async with (
        serve_engine(config) as engine,
        serving("--decode", engine.url, *OFTEN) as router,
    ):
        await router.ready()
        done = asyncio.Event()

        async def go_on() -> None:
            while not done.is_set():
                await ask(router, 8)

        clients = [asyncio.ensure_future(go_on()) for _ in range(8)]
        await until_ranks(router, *ranks_of(engine))
        done.set()
        await asyncio.gather(*clients)


async def test_gauges_and_orders_are_those_of_a_rank() -> None:
    config = EngineConfig(data_parallel_size=RANKS, data_parallel_start_rank=4, step_s=0.01)
    async with (
        serve_engine(config) as engine,
        serving("--decode", engine.url, *OFTEN, "--admin-port", "0") as router,
    ):
        line = await router.until("listening")
        public, router.port = router.port, int(line["admin_url"].rpartition(":")[2])
        names = [f"{engine.url}#{rank}" for rank in range(4, 8)]
        await until_ranks(router, *names)
        order = await (await router.client()).ask("/admin/engines/drain", {"url": names[1]})
        assert order.status == 200, order
        router.port = public
        await asyncio.gather(*(ask(router, 8) for _ in range(12)))
        pinned = asked(engine)
        pinned.pop(None, None)
        assert set(pinned) == {"0", "2", "3"}  # the engine counts its own ranks


async def test_each_rank_reports_its_own_cache() -> None:
    config = EngineConfig(
        data_parallel_size=2, kv_events=True, version="0.33.0", step_s=0.005, block_size=16
    )
    flags = ("--prefix-cache", "events", "--engine-stats-interval", "0.05")
    async with (
        serve_engine(config) as engine,
        serving("--decode", engine.url, *flags) as router,
    ):
        names = [f"{engine.url}#{rank}" for rank in range(2)]
        await until_ranks(router, *names)

        async def sources() -> dict[str, list[str]]:
            found = await shown(router)
            return {
                url: [each["endpoint"] for each in entry["kv_events"]["sources"]]
                for url, entry in found.items()
            }

        own = [rank.engine.events.endpoint for rank in (engine, *engine.ranks)]
        async with asyncio.timeout(SECONDS):
            while await sources() != {n: [e] for n, e in zip(names, own, strict=True)}:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        # The same prompt goes where its beginning lies.
        prompt = "def main(argv):\n    return argv\n" * 40
        for _ in range(6):
            await ask(router, 4, prompt=prompt)
        assert max(asked(engine).values()) >= 5


async def test_with_ranks_off_the_engine_divides_requests() -> None:
    config = EngineConfig(data_parallel_size=RANKS, step_s=0.005)
    flags = ("--data-parallel-ranks", "off", *OFTEN)
    async with serve_engine(config) as engine, serving("--decode", engine.url, *flags) as router:
        await until_ranks(router, engine.url)
        await asyncio.gather(*(ask(router) for _ in range(8)))
        assert set(asked(engine)) == {None}
        assert all(rank.engine.machine.counters.generated for rank in engine.ranks)


async def test_each_rank_of_a_mooncake_engine_is_named_by_its_own_id() -> None:
    mooncake = EngineConfig(connector="mooncake", role="prefill", data_parallel_size=2)
    async with (
        serve_engine(mooncake) as prefill,
        serve_engine(EngineConfig(connector="mooncake", role="decode")) as decode,
        serving(
            *("--prefill", prefill.url, "--decode", decode.url, "--routing-threshold", "0"),
            *("--disagg-connector-type", "mooncake", *OFTEN, "--health-check-interval", "0.05"),
            *("--mooncake-bootstrap-port", prefill.url.rpartition(":")[2]),
        ) as router,
    ):
        await until_ranks(router, *ranks_of(prefill, 2), decode.url)
        async with asyncio.timeout(SECONDS):
            ranks = (prefill, *prefill.ranks)
            while not all(each.state["references"]["read"] for each in ranks):
                await ask(router)
        assert decode.state["loads"]["failed"] == decode.state["loads"]["wrong"] == 0
        assert [each.state["references"]["unknown"] for each in ranks] == [0, 0]
