"""With several worker processes the live page shows the figures of all of them."""

from tests.e2e.process import serving
from tests.e2e.worker_processes import everywhere, flags, served_by, workers_of
from tests.net.client import request
from tests.net.harness import Harness
from tests.net.payloads import COMPLETIONS, DONE, STREAM, completion, token
from tests.web.dashboard.watcher import Watcher

WORKERS = 3


async def test_a_sample_has_the_figures_of_all_workers(harness: Harness) -> None:
    engine = await harness.engine()
    async with serving("--decode", engine.url, "--workers", str(WORKERS)) as process:
        await process.ready()
        viewer = await Watcher.on(await process.client())
        watched = served_by(process, viewer.client)
        clients, calls = [], []
        serving_pids = set[int]()
        while not serving_pids - {watched}:
            client = await process.client()
            await client.send(request(COMPLETIONS, STREAM))
            calls.append(await engine.call())
            serving_pids.add(served_by(process, client))
            clients.append(client)
        while (await viewer.sample())["totals"]["in_flight"] != len(clients):
            pass
        for call in calls:
            call.stream_whole(token("a"), token("b"), DONE)
        for client in clients:
            assert (await client.answer()).status == 200
        while True:
            sample = await viewer.sample()
            if sum(decision["total"] for decision in sample["decisions"]) == len(clients):
                break
        [engine_now] = sample["pools"][0]["endpoints"]
        assert engine_now["share"] == 1
        assert sample["totals"]["in_flight"] == 0
        assert sample["totals"]["ttft_p50_seconds"] is not None


async def test_the_first_viewer_sees_failures_of_other_workers(harness: Harness) -> None:
    engine = await harness.engine()
    async with serving(*flags(engine)) as process:
        await process.ready()
        engine.refuse()
        engine.drop()
        served = set[int]()
        failures = 0
        while served != set(workers_of(process)):
            client = await process.client()
            assert (await client.ask(COMPLETIONS, completion())).status >= 500
            served.add(served_by(process, client))
            failures += 1
        await everywhere(process, "pd_router_requests_failed_total", failures)
        sample = await (await Watcher.on(await process.client())).sample()
        assert sample["totals"]["failures"] == failures
