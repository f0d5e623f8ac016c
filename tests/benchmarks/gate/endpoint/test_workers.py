import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from benchmarks.gate.endpoint import workers
from benchmarks.gate.endpoint.control_client import control_client
from benchmarks.gate.endpoint.workers import Sampler, Workers, discover, gauges, of_rank, unusable

METRICS = b"""# HELP vllm:num_requests_running Num requests running.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 9.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
"""


def test_gauges_are_read_from_vllms_exposition() -> None:
    assert gauges(METRICS) == (3.0, 2.0, 0.25)
    assert gauges(b"vllm:num_requests_running 1\nvllm:gpu_cache_usage_perc 0.5\n") == (
        1.0,
        None,
        0.5,
    )
    assert gauges(b"") == (None, None, None)
    assert gauges(b"vllm:num_requests_running x\n")[0] is None


def test_ranks_add_up_and_the_fullest_cache_counts() -> None:
    text = METRICS + b'vllm:num_requests_running{engine="1"} 4\nvllm:kv_cache_usage_perc{e="1"} 1\n'
    assert gauges(text) == (7.0, 2.0, 1.0)


def test_one_rank_has_lines_of_its_own() -> None:
    text = (
        METRICS
        + b'vllm:num_requests_running{engine="1"} 4\nvllm:num_requests_running{engine="10"} 9\n'
    )
    assert gauges(of_rank(text, "1")) == (4.0, None, None)
    assert gauges(of_rank(text, "0")) == (3.0, 2.0, 0.25)
    assert of_rank(text, "") == text


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def served(routes: Mapping[str, Handler]) -> AsyncIterator[str]:
    app = web.Application()
    for path, handler in routes.items():
        app.router.add_get(path, handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield "http://{}:{}".format(*runner.addresses[0][:2])
    finally:
        await runner.cleanup()


def view(url: str, **changes: object) -> dict[str, Any]:
    plain = {"url": url, "role": "decode", "state": "up", "exclusion": None, "in_flight": 5}
    return {**plain, "seconds_per_token": 0.01, **changes}


def listing(*views: object) -> dict[str, Handler]:
    async def endpoints(_request: web.Request) -> web.Response:
        return web.json_response(list(views))

    return {"/endpoints": endpoints}


async def test_workers_are_the_given_ones_else_the_routers() -> None:
    async with (
        served(listing(view("http://a"), view("http://b"))) as url,
        control_client(url, {}) as asked,
    ):
        assert await discover(asked, ()) == Workers(("http://a", "http://b"), "router")
        assert await discover(asked, ["http://c"]) == Workers(("http://c",), "told")


@pytest.mark.parametrize("found", [[], [{"id": "not a worker"}], ["text"]])
async def test_without_a_list_no_worker_is_known_and_this_is_reported(found: list[object]) -> None:
    async with served(listing(*found)) as url, control_client(url, {}) as asked:
        workers = await discover(asked, ())
        assert workers == Workers((), None)
        assert "no worker evidence" in workers.line
        assert await unusable(asked, (), None) is None
    async with control_client("http://127.0.0.1:9", {}) as asked:
        assert await discover(asked, ()) == Workers((), None)


async def refusing(_request: web.Request) -> web.Response:
    return web.json_response({"error": {"message": "no"}}, status=503)


@pytest.mark.parametrize(
    "paths", [{}, listing(), {"/endpoints": refusing}], ids=["not there", "empty", "refused"]
)
async def test_workers_that_are_expected_must_be_known(paths: dict[str, Handler]) -> None:
    async with served(paths) as url, control_client(url, {}) as asked:
        why = await unusable(asked, (), 8)
    assert why is not None
    assert why.startswith("8 workers are expected, and the endpoint lists none at /endpoints")
    assert "admin port" in why
    assert "--worker URL" in why


@pytest.mark.parametrize(
    ("views", "expected", "why"),
    [
        ([view("a"), view("b")], None, None),
        ([view("a"), view("b")], 2, None),
        ([view("a"), view("b")], 3, "2 of 3 workers are usable"),
        ([view("a"), view("b", state="down")], None, "1 of 2 workers are usable; b is down"),
        ([view("a"), view("b", state="starting")], 1, "1 of 2 workers are usable; b is starting"),
        (
            [view("a"), view("b", exclusion="stalled")],
            None,
            "1 of 2 workers are usable; b is set aside: stalled",
        ),
        ([view("a"), view("b", exclusion="slow")], None, None),
        ([view("a"), view("p", role="prefill")], 2, "1 of 2 workers are usable"),
        (
            [view("a"), view("p", role="prefill", state="down")],
            None,
            "1 of 1 workers are usable; p is down",
        ),
    ],
)
async def test_every_expected_worker_must_be_usable(
    views: list[object], expected: int | None, why: str | None
) -> None:
    async with served(listing(*views)) as url, control_client(url, {}) as asked:
        assert await unusable(asked, (), expected) == why


async def test_given_workers_are_sampled_directly() -> None:
    async def fine(_request: web.Request) -> web.Response:
        return web.Response()

    async def ill(_request: web.Request) -> web.Response:
        return web.Response(status=503)

    async with (
        served({"/health": fine}) as well,
        served({"/health": ill}) as sick,
        control_client("http://127.0.0.1:9", {}) as asked,
    ):
        assert await unusable(asked, [well], None) is None
        why = await unusable(asked, [well, sick, "http://127.0.0.1:9"], None)
    assert why is not None
    assert why.startswith("1 of 3 workers are usable; ")
    assert f"{sick}: status 503" in why
    assert "http://127.0.0.1:9: cannot connect" in why


class Worker:
    """Reports the number of its requests."""

    def __init__(self, *, answers: bool = True) -> None:
        self.asked: asyncio.Queue[None] = asyncio.Queue()
        self._answers = answers

    async def metrics(self, _request: web.Request) -> web.Response:
        self.asked.put_nowait(None)
        if not self._answers:
            return web.Response(status=500)
        return web.Response(body=METRICS)


@pytest.mark.usefixtures("calm")
async def test_samples_join_views_of_worker_and_router() -> None:
    sound, silent = Worker(), Worker(answers=False)
    async with (
        served({"/metrics": sound.metrics}) as a,
        served({"/metrics": silent.metrics}) as b,
        served(listing(view(a), view(b, exclusion="slow", in_flight=9))) as url,
        control_client(url, {}) as asked,
    ):
        begin = time.monotonic()
        async with Sampler(asked, Workers((a, b), "router"), 0.01) as sampler:
            for worker in (sound, silent):
                for _ in range(20):
                    await worker.asked.get()
            found = sampler.between(begin, time.monotonic())
            assert sampler.busiest() == (b, 9)
        assert sampler.between(begin - 9, begin - 1) == ()
    known = {each.worker: each for each in found if each.in_flight is not None}
    good, bad = known[a], known[b]
    assert (good.running, good.waiting, good.kv_usage, good.in_flight) == (3.0, 2.0, 0.25, 5)
    assert (good.exclusion, good.seconds_per_token) == (None, 0.01)
    assert (bad.running, bad.waiting, bad.kv_usage, bad.in_flight) == (None, None, None, 9)
    assert bad.exclusion == "slow"
    assert all(0 <= each.at < 60 for each in found)


@pytest.mark.usefixtures("calm")
async def test_ranks_are_distinguished_and_their_engine_is_sampled_once_a_beat() -> None:
    text = METRICS + b'vllm:num_requests_running{engine="1"} 4\n'
    asked_for: asyncio.Queue[None] = asyncio.Queue()

    async def metrics(_request: web.Request) -> web.Response:
        asked_for.put_nowait(None)
        return web.Response(body=text)

    async with (
        served({"/": metrics, "/metrics": metrics}) as a,
        served(listing(view(f"{a}#0"), view(f"{a}#1", in_flight=7))) as url,
        control_client(url, {}) as asked,
    ):
        begin = time.monotonic()
        async with Sampler(asked, await discover(asked, ()), 0.01) as sampler:
            for _ in range(20):
                await asked_for.get()
            found = sampler.between(begin, time.monotonic())
    known = {each.worker: (each.running, each.in_flight) for each in found}
    assert known == {f"{a}#0": (3.0, 5), f"{a}#1": (4.0, 7)}
    assert 20 + asked_for.qsize() < len(found), "two samples for each time that it was asked"


@pytest.mark.usefixtures("calm")
async def test_a_beat_is_one_view_of_all_workers() -> None:
    """Else one worker's load after a change stands beside another's before it."""
    count, both = 0, [Worker(), Worker()]

    async def endpoints(_request: web.Request) -> web.Response:
        nonlocal count
        count += 1
        return web.json_response([view(url, in_flight=count) for url in (a, b)])

    async with (
        served({"/metrics": both[0].metrics}) as a,
        served({"/metrics": both[1].metrics}) as b,
        served({"/endpoints": endpoints}) as url,
        control_client(url, {}) as asked,
    ):
        begin = time.monotonic()
        async with Sampler(asked, Workers((a, b), "router"), 0.01) as sampler:
            for _ in range(20):
                await both[1].asked.get()
            found = sampler.between(begin, time.monotonic())
    seen: dict[float, set[int | None]] = {}
    for each in found:
        seen.setdefault(each.at, set()).add(each.in_flight)
    assert len(seen) > 5
    assert all(len(held) == 1 for held in seen.values())


@pytest.mark.usefixtures("calm")
async def test_a_silent_worker_delays_no_later_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "LEAST_TIMEOUT_S", 0.05)
    sound = Worker()

    async def hang(_request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async with (
        served({"/metrics": sound.metrics}) as a,
        served({"/metrics": hang}) as b,
        control_client("http://127.0.0.1:9", {}) as asked,
    ):
        begin = time.monotonic()
        async with Sampler(asked, Workers((a, b), "told"), 0.01) as sampler:
            while not (found := sampler.between(begin, time.monotonic())):
                await sound.asked.get()
    running = {each.worker: each.running for each in found}
    assert running == {a: 3.0, b: None}


async def test_without_known_replicas_no_request_is_sent() -> None:
    nobody = Workers((), None)
    async with control_client("http://h:9", {}) as asked, Sampler(asked, nobody, 0.01) as sampler:
        assert sampler.busiest() is None
        assert sampler.between(0.0, float("inf")) == ()
