"""The live page over real sockets: files, access, and limits."""

import asyncio
from html.parser import HTMLParser

import pytest

from router.web.dashboard.page import ASSETS, MAX_VIEWERS
from tests.net.client import request
from tests.net.harness import Harness, Running, eventually
from tests.net.payloads import COMPLETIONS, DONE, OK, STREAM, completion, token
from tests.web.dashboard.watcher import EVENTS, Watcher
from tests.web.test_admin import admin_client

FILES = ["/dashboard", *(f"/dashboard/{name}" for name, _ in ASSETS)]


class Links(HTMLParser):
    """What a page loads or points to, and what it would run or style by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.inline: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [str(value) for name, value in attrs if name in ("src", "href")]
        self.inline += [name for name, _ in attrs if name.startswith("on") or name == "style"]
        if tag == "style" or (tag == "script" and not dict(attrs).get("src")):
            self.inline.append(tag)


async def watcher(router: Running) -> Watcher:
    """A viewer on the public port."""
    return await Watcher.on(await router.client())


@pytest.mark.parametrize("path", FILES)
async def test_files_are_own_and_load_nothing_else(harness: Harness, path: str) -> None:
    router = await harness.router(await harness.engine())
    answer = await (await router.client()).get(path)
    assert answer.status == 200
    [policy] = answer.values(b"content-security-policy")
    assert policy.startswith(b"default-src 'none'; script-src 'self'; style-src 'self'; ")
    assert b"unsafe" not in policy
    assert b"http" not in policy
    assert answer.values(b"x-content-type-options") == [b"nosniff"]


async def test_the_page_is_whole_and_needs_nothing_from_elsewhere(harness: Harness) -> None:
    router = await harness.router(await harness.engine())
    answer = await (await router.client()).get("/dashboard")
    links = Links()
    links.feed(answer.body.decode())
    assert links.inline == []
    assert links.found
    for link in links.found:
        assert (await (await router.client()).get(f"/{link}")).status == 200, link


@pytest.mark.parametrize("name", ["dashboard.py", "..%2fpage.py", "%2e%2e", "page.py"])
async def test_no_other_file_is_served(harness: Harness, name: str) -> None:
    router = await harness.router(await harness.engine())
    answer = await (await router.client()).get(f"/dashboard/{name}")
    assert answer.status == 404
    assert "GET /dashboard" in answer.error["message"]


@pytest.mark.parametrize("path", [*FILES, EVENTS])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_it_is_read_only(harness: Harness, path: str, method: str) -> None:
    router = await harness.router(await harness.engine())
    assert (await (await router.client()).get(path, method)).status == 405


async def test_the_head_of_the_events_has_an_end(harness: Harness) -> None:
    router = await harness.router(await harness.engine())
    answer = await (await router.client()).get(EVENTS, "HEAD")
    assert answer.status == 200
    assert answer.values(b"content-type") == [b"text/event-stream; charset=utf-8"]
    assert not router.router.operators.sampler.is_running


async def test_events_begin_with_the_history_and_go_on_with_samples(harness: Harness) -> None:
    router = await harness.router(await harness.engine())
    viewer = await watcher(router)
    assert viewer.answer.values(b"content-type") == [b"text/event-stream; charset=utf-8"]
    assert viewer.answer.values(b"cache-control") == [b"no-cache"]
    name, data = await viewer.event()
    assert name == "history"
    assert data["samples"] == []
    first = await viewer.sample()
    assert (await viewer.sample())["window_seconds"] > first["window_seconds"]


async def test_the_first_viewer_sees_earlier_failures(harness: Harness) -> None:
    engine, router = await harness.single()
    engine.refuse()
    engine.drop()
    for _ in range(26):
        assert (await router.ask(COMPLETIONS, completion())).status >= 500
    sample = await (await watcher(router)).sample()
    assert sample["totals"]["failures"] == 26


async def test_a_sample_has_engines_requests_and_decisions(harness: Harness) -> None:
    engines = [await harness.engine() for _ in range(2)]
    router = await harness.router(*engines)
    viewer = await watcher(router)
    first = await viewer.sample()
    [pool] = first["pools"]
    assert (pool["role"], pool["status"]) == ("decode", "2 of 2 up")
    assert [e["url"] for e in pool["endpoints"]] == [engine.url for engine in engines]
    assert [e["status"] for e in pool["endpoints"]] == ["up", "up"]
    assert first["changes"][0]["text"].endswith("is up; 2 of 2 decode engines up")
    assert pool["endpoints"][0]["share"] is None
    client = await router.send(COMPLETIONS, STREAM)
    await eventually(lambda: sum(engine.waiting for engine in engines) == 1)
    [engine] = [engine for engine in engines if engine.waiting]
    call = await engine.call()
    place = engines.index(engine)
    while (await viewer.sample())["totals"]["in_flight"] != 1:
        pass
    call.stream(token("a"))
    await (await client.begin()).until(token("a"))
    call.end(token("b"), DONE)
    while (sample := await viewer.sample())["totals"]["in_flight"]:
        pass
    while not sample["decisions"]:  # counted 0.05 s after the end
        sample = await viewer.sample()
    entry = sample["pools"][0]["endpoints"][place]
    assert entry["share"] == 1
    assert 0 < entry["ttft_p50_seconds"] <= entry["ttft_p99_seconds"]
    assert sample["totals"]["requests_per_second"] > 0
    assert sample["totals"]["tokens_per_second"] > 0
    assert sample["fallbacks"] == []
    [decision] = sample["decisions"]
    assert (decision["mode"], decision["reason"]) == ("direct", "no_prefill_pool")
    assert (decision["count"], decision["total"]) == (1, 1)


async def test_an_engine_that_goes_down_is_logged_with_its_cause(harness: Harness) -> None:
    good, bad = await harness.engine(), await harness.engine()
    router = await harness.router(good, bad)
    viewer = await watcher(router)
    bad.refuse()
    bad.drop()
    good.answer_all(lambda call: call.send(OK))
    while (await viewer.sample())["pools"][0]["endpoints"][1]["status"] != "down":
        for _ in range(4):
            await router.ask(COMPLETIONS, completion())
    while not (sample := await viewer.sample())["changes"][0]["is_bad"]:
        pass
    assert sample["changes"][0]["text"].startswith(f"decode {bad.url} is down")
    assert sample["pools"][0]["status"] == "1 of 2 up: 1 down"
    assert sample["fallbacks"][0]["reason"] == "refused"


async def test_when_the_viewer_leaves_nothing_is_sampled(harness: Harness) -> None:
    router = await harness.router(await harness.engine())
    viewer = await watcher(router)
    await viewer.sample()
    assert router.router.operators.sampler.is_running
    viewer.client.leave()
    await eventually(lambda: not router.router.operators.sampler.is_running)
    await eventually(lambda: not router.server.server_state.tasks)


async def test_one_viewer_too_many_is_refused(harness: Harness) -> None:
    router = await harness.router(await harness.engine())
    viewers = [await watcher(router) for _ in range(MAX_VIEWERS)]
    refused = await (await router.client()).get(EVENTS)
    assert refused.status == 503
    assert "viewers are connected already" in refused.error["message"]
    viewers[0].client.leave()
    await eventually(lambda: router.router.operators.sampler.viewers < MAX_VIEWERS)
    assert (await (await watcher(router)).event())[0] == "history"


class Heavy:
    """Samples of a megabyte."""

    async def sample(self) -> bytes:
        return b"x" * (1 << 20)

    def history(self) -> bytes:
        return b"{}"


async def test_a_viewer_that_does_not_read_is_dropped_with_little_unsent(harness: Harness) -> None:
    router = await harness.router(await harness.engine())
    sampler = router.router.operators.sampler
    sampler._begin = Heavy
    sampler._sleep = lambda _: asyncio.sleep(0)
    client = await router.client(receive_buffer=4096)
    await client.send(request(EVENTS, method="GET"))
    await eventually(lambda: sampler.viewers == 1 and not sampler.is_running)
    [connection] = router.connections
    assert connection.transport.get_write_buffer_size() < 2 << 20
    client.leave()
    await eventually(lambda: sampler.viewers == 0)


async def test_viewers_on_the_public_port_do_not_hold_up_the_shutdown(harness: Harness) -> None:
    router = await harness.router(await harness.engine(), shutdown_grace=3600)
    viewer = await watcher(router)
    await viewer.sample()
    async with asyncio.timeout(60):
        await router.server.shutdown()
    await viewer.answer.rest()


async def test_operators_see_the_router_drain(harness: Harness) -> None:
    engine, router = await harness.single(admin_port=0)
    viewer = await Watcher.on(await admin_client(router))
    assert not (await viewer.sample())["is_draining"]
    client = await router.send(COMPLETIONS, STREAM)
    call = await engine.call()
    ending = asyncio.ensure_future(router.server.shutdown())
    while not (await viewer.sample())["is_draining"]:
        pass
    call.stream_whole(token("a"), DONE)
    await client.answer()
    await ending
