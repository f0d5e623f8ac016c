"""pd-router check --try: a request over each pair, and whether its KV cache moved."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from router.commands import check
from router.settings import load
from router.simulator import EngineConfig, RunningEngine, serve_engine
from tests.discovery.api import Api
from tests.discovery.api import serving as api_server
from tests.e2e.test_discovery import kubeconfig, of

Start = Callable[..., Awaitable[RunningEngine]]


def posts(engine: RunningEngine) -> int:
    """The requests for tokens that an engine got."""
    return sum(each.method == "POST" for each in engine.requests)


@pytest.fixture
async def simulate() -> AsyncIterator[Start]:
    """Starts simulated engines; they end with the test."""
    async with AsyncExitStack() as stack:

        async def start(**config: Any) -> RunningEngine:
            return await stack.enter_async_context(serve_engine(EngineConfig(**config)))

        yield start


@pytest.fixture
def tried(capsys: pytest.CaptureFixture[str]) -> Callable[..., Awaitable[tuple[int, list[str]]]]:
    """Runs the command in a thread, since it has an event loop of its own; its status, and the
    lines about trials."""

    async def run(**flags: Any) -> tuple[int, list[str]]:
        status = await asyncio.to_thread(check.run, load(flags), tries=True)
        lines = capsys.readouterr().out.splitlines()
        return status, [line for line in lines if re.search("try |trial|tried|well", line)]

    return run


async def test_the_kv_cache_of_a_trial_moves_over_every_pair(simulate, tried):
    p0, p1, d0 = [await simulate(role=role) for role in ("prefill", "prefill", "decode")]
    status, lines = await tried(prefill=f"{p0.url},{p1.url}", decode=d0.url)
    assert status == 0, lines
    *each, count, last = lines
    assert count == "2 of 2 trial requests went well."
    for line, prefill in zip(each, (p0, p1), strict=True):
        found = re.fullmatch(
            rf"try {prefill.url} -> {d0.url}: ok, prefill [\d.]+ s, decode [\d.]+ s, "
            r"the KV cache of (\d+) of (\d+) prompt tokens moved",
            line,
        )
        assert found, line
        moved, prompt = int(found[1]), int(found[2])
        assert 100 < prompt - 16 < moved <= prompt, "whole blocks of 16 tokens"
    assert last == "All is well: 2 prefill and 1 decode engines."


async def test_every_engine_of_the_larger_pool_is_tried(simulate, tried):
    p0, d0, d1 = [await simulate(role=role) for role in ("prefill", "decode", "decode")]
    status, lines = await tried(prefill=p0.url, decode=f"{d0.url},{d1.url}")
    assert status == 0, lines
    assert [posts(d) for d in (d0, d1)] == [1, 1]
    assert posts(p0) == 2


async def test_a_plain_pool_serves_directly(simulate, tried):
    d0 = await simulate()
    status, lines = await tried(decode=d0.url)
    assert status == 0
    assert re.fullmatch(rf"try {d0.url}: ok, answered in [\d.]+ s", lines[0])


async def test_lmcache_is_tried_with_its_receivers(simulate, tried):
    d0 = await simulate(connector="lmcache")
    p0 = await simulate(connector="lmcache", receivers={"decoder:7300": d0.url})
    receiver = {"decoder_host": "decoder", "decoder_init_port": 7300, "decoder_alloc_port": 7400}
    flags = {"disagg_connector_type": "lmcache", **receiver}
    status, lines = await tried(prefill=p0.url, decode=d0.url, **flags)
    assert status == 0, lines
    assert "prompt tokens moved" in lines[0]


async def test_lmcache_is_tried_with_the_receivers_that_pods_name(simulate, tried, tmp_path):
    d0 = await simulate(connector="lmcache")
    p0 = await simulate(connector="lmcache", receivers={"decoder:7300": d0.url})
    api = Api()
    api.put("prefill-0", role="prefill", **of(p0.url))
    annotations = {
        "pd-router/lmcache-host": "decoder",
        "pd-router/lmcache-init-ports": "7300",
        "pd-router/lmcache-alloc-ports": "7400",
    }
    api.put("decode-0", role="decode", annotations=annotations, **of(d0.url))
    async with api_server(api) as url:
        status, lines = await tried(
            disagg_connector_type="lmcache",
            k8s_prefill_selector="role=prefill",
            k8s_decode_selector="role=decode",
            k8s_port="http",
            k8s_config_file=str(kubeconfig(tmp_path, url)),
            k8s_namespace="default",
        )
    assert status == 0, lines
    assert "prompt tokens moved" in lines[0]


@pytest.mark.parametrize("returns", [False, True])
async def test_a_decode_engine_that_keeps_its_answers_is_warned_of(simulate, tried, returns):
    p0, d0 = await simulate(), await simulate(kv_returns=returns)
    status, lines = await tried(prefill=p0.url, decode=d0.url)
    assert status == 0, lines
    assert ("start it without bidirectional_kv_xfer" in lines[0]) is returns
    assert bool(d0.state["pinned_blocks"]) is returns


async def test_engines_that_push_are_tried(simulate, tried):
    p0, d0 = [await simulate(connector="nixl-push") for _ in "pd"]
    status, lines = await tried(prefill=p0.url, decode=d0.url)
    assert status == 0, lines
    assert "prompt tokens moved" in lines[0]


MOONCAKE = {"disagg_connector_type": "mooncake"}


async def test_mooncake_is_tried_with_the_id_of_the_bootstrap_server(simulate, tried):
    p0, d0 = [await simulate(connector="mooncake", role=role) for role in ("prefill", "decode")]
    port = int(p0.url.rpartition(":")[2])
    status, lines = await tried(
        prefill=p0.url, decode=d0.url, mooncake_bootstrap_port=port, **MOONCAKE
    )
    assert status == 0, lines
    assert "prompt tokens moved" in lines[0]
    assert p0.state["pinned_blocks"] == 0


async def test_a_wrong_bootstrap_port_is_named(simulate, tried, capsys):
    """Nothing is sent, because the blocks would be kept for nobody."""
    p0, d0 = [await simulate(connector="mooncake", role=role) for role in ("prefill", "decode")]
    port = int(d0.url.rpartition(":")[2])
    settings = load(
        {"prefill": p0.url, "decode": d0.url, "mooncake_bootstrap_port": port} | MOONCAKE
    )
    assert await asyncio.to_thread(check.run, settings, tries=True) == 1
    said = capsys.readouterr().out
    assert f"its Mooncake bootstrap server http://127.0.0.1:{port}/query: answers 404" in said
    assert posts(p0) == 0


async def test_ranks_behind_one_url_are_not_tried(simulate, tried):
    p0 = await simulate(connector="mooncake", role="prefill", data_parallel_size=2)
    d0 = await simulate(connector="mooncake", role="decode")
    port = int(p0.url.rpartition(":")[2])
    status, lines = await tried(
        prefill=p0.url, decode=d0.url, mooncake_bootstrap_port=port, **MOONCAKE
    )
    assert status == 1
    assert "has several data-parallel ranks, which only a router tells apart" in lines[0]
    assert posts(p0) == posts(d0) == 0


@pytest.mark.parametrize("reads", [False, True])
async def test_moriio_is_tried_and_its_read_mode_is_refused(simulate, tried, reads):
    p0, d0 = [
        await simulate(connector="moriio", role=role, moriio_reads=reads)
        for role in ("prefill", "decode")
    ]
    port = int(d0.url.rpartition(":")[2])
    status, lines = await tried(
        prefill=p0.url,
        decode=d0.url,
        disagg_connector_type="moriio",
        moriio_handshake_port=port,
        moriio_notify_port=port,
    )
    assert status == reads, lines
    said = f"decode {d0.url} runs MoRIIO in READ mode" if reads else "prompt tokens moved"
    assert said in lines[0]
    assert posts(p0) == (not reads)


async def test_the_store_is_tried(simulate, tried, tmp_path):
    engines = [await simulate(connector="store", store=str(tmp_path)) for _ in "pd"]
    p0, d0 = engines
    status, lines = await tried(prefill=p0.url, decode=d0.url, disagg_connector_type="store")
    assert status == 0, lines
    assert "prompt tokens moved" in lines[0]


async def test_engines_of_different_stores_are_named(simulate, tried, tmp_path):
    stores = [tmp_path / "a", tmp_path / "b"]
    for store in stores:
        store.mkdir()
    p0, d0 = [await simulate(connector="store", store=str(store)) for store in stores]
    status, lines = await tried(prefill=p0.url, decode=d0.url, disagg_connector_type="store")
    assert status == 1
    assert "no KV cache moved; see whether both engines have the same" in lines[0]


async def test_a_redirect_of_an_engine_is_not_followed(simulate, tried):
    p0, d0, other = await simulate(role="prefill"), await simulate(role="decode"), await simulate()
    to = f"HTTP/1.1 307 X\r\nlocation: {other.url}/v1/models\r\ncontent-length: 0\r\n\r\n"
    await d0.set_faults(wire=to, paths=("/metrics",))
    await tried(prefill=p0.url, decode=d0.url)
    assert other.requests == ()


@pytest.mark.parametrize("connector", ["none", "mooncake"])
async def test_a_prefill_engine_without_the_connector_is_named(simulate, tried, connector):
    p0, d0 = await simulate(connector=connector), await simulate()
    status, lines = await tried(prefill=p0.url, decode=d0.url)
    assert status == 1
    said = f"prefill {p0.url} keeps no KV cache for nixl: start it with that connector"
    assert said in lines[0]
    assert "--disagg-connector-type" in lines[0]
    assert lines[1] == "0 of 1 trial requests went well."
    assert "All is well" not in "".join(lines)
    assert posts(d0) == 0


async def test_a_failed_kv_load_is_reported_with_the_decode_engines_message(simulate, tried):
    p0, d0 = await simulate(), await simulate()
    await d0.set_faults(fail_kv_loads=1)
    status, lines = await tried(prefill=p0.url, decode=d0.url)
    assert status == 1
    assert f"decode {d0.url} answers 500: Internal server error. It could not load" in lines[0]
    assert "VLLM_NIXL_SIDE_CHANNEL_HOST" in lines[0]


async def test_an_answer_without_a_transfer_is_a_failure(simulate, tried):
    p0, d0 = await simulate(), await simulate(kv_load_failure_policy="recompute")
    await d0.set_faults(fail_kv_loads=1)
    status, lines = await tried(prefill=p0.url, decode=d0.url)
    assert status == 1
    assert "the decode engine computed the prompt itself: no KV cache moved" in lines[0]


async def test_an_impossible_count_of_moved_tokens_is_none(simulate, tried):
    p0, d0 = await simulate(), await simulate()
    page = b'vllm:prompt_tokens_by_source_total{source="external_kv_transfer"} +Inf\n'
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n" % len(page)
    await d0.set_faults(wire=(head + page).decode(), paths=("/metrics",))
    status, lines = await tried(prefill=p0.url, decode=d0.url)
    assert status == 0
    assert lines[0].endswith("the engine does not report whether the KV cache moved")


async def test_an_engine_that_fails_only_then_is_named(simulate, tried):
    p0, d0 = await simulate(), await simulate()
    await p0.set_faults(status=503, only="prefill")
    status, lines = await tried(prefill=p0.url, decode=d0.url)
    assert status == 1
    assert f"prefill {p0.url} answers 503: " in lines[0]


async def test_pools_of_different_models_cannot_be_tried(simulate, tried):
    p0, d0 = await simulate(model="a"), await simulate(model="b")
    status, lines = await tried(prefill=p0.url, decode=d0.url)
    assert status == 1
    assert lines == ["No pair of engines could be tried."], "and nothing is well"
    assert [posts(each) for each in (p0, d0)] == [0, 0]
