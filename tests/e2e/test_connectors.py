"""NIXL, Mooncake, LMCache and a shared store from end to end: answers equal those of one engine,
and KV caches really move."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from router.core.routing.stored_responses import keepers
from router.core.values import Endpoint, Role
from router.simulator import EngineConfig, RunningEngine, serve_engine
from tests.e2e.connectors import ask, router_process, urls
from tests.e2e.process import serving
from tests.leaks import leaks_params
from tests.ports import own_port
from tests.simulated import Engine

MODEL = "m"
THRESHOLD = 40
LONG = "the quick brown fox jumps over the lazy dog " * 6
SHORT = "hello there"

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def completion(prompt: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return COMPLETIONS, {"model": MODEL, "prompt": prompt, "temperature": 0, **more}


def chat(prompt: str, **more: Any) -> tuple[str, dict[str, Any]]:
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": prompt}]},
    ]
    return CHAT, {"model": MODEL, "messages": messages, "temperature": 0, **more}


SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "number"}}}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]
JSON = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}

REQUESTS = {
    "completion": completion(LONG, max_tokens=8),
    "completion, streamed": completion(LONG, max_tokens=8, **STREAM),
    "completion without max_tokens": completion(LONG),
    "completion of one token": completion(LONG, max_tokens=1),
    "completion of one token, streamed": completion(LONG, max_tokens=1, **STREAM),
    "completion that ends at once": completion("<<eos:1>>" + LONG, max_tokens=8),
    "completion that ends at once, streamed": completion(
        "<<eos:1>>" + LONG, max_tokens=8, **STREAM
    ),
    "completion that ends by itself": completion("<<eos:3>>" + LONG, max_tokens=8, **STREAM),
    "completion with a stop string": completion(LONG, max_tokens=8, stop=["a", "e"]),
    "completion with min_tokens": completion("<<eos:2>>" + LONG, max_tokens=8, min_tokens=4),
    "completion with logprobs": completion(LONG, max_tokens=4, logprobs=2),
    "chat": chat(LONG, max_tokens=8),
    "chat, streamed": chat(LONG, max_completion_tokens=8, **STREAM),
    "chat with tools": chat(LONG, max_tokens=8, tools=TOOLS, tool_choice="none"),
    "chat that calls a tool": chat(LONG, tools=TOOLS),
    "chat that calls a tool, streamed": chat(LONG, tools=TOOLS, **STREAM),
    "chat that calls a tool and is cut off": chat(LONG, tools=TOOLS, max_tokens=20, **STREAM),
    "chat that must call a tool": chat(LONG, tools=TOOLS, tool_choice="required"),
    "chat by a schema": chat(LONG, response_format=JSON),
    "completion by a schema, streamed": completion(
        LONG, structured_outputs={"json": SCHEMA}, max_tokens=60, **STREAM
    ),
}


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def moved(engine: RunningEngine) -> int:
    """Prompt tokens whose KV cache came from another engine."""
    tokens: Mapping[str, int] = engine.state["tokens"]
    return tokens["external_kv_transfer"]


async def compare(
    session: aiohttp.ClientSession, router: str, alone: str, path: str, body: dict[str, Any]
) -> None:
    """The same text, usage and finish through the router as from one engine alone."""
    routed = await ask(session, router, path, body)
    expected = await ask(session, alone, path, body)
    assert routed.status == expected.status == 200
    assert (routed.texts, routed.usage, routed.finish) == (
        expected.texts,
        expected.usage,
        expected.finish,
    )
    assert not leaks_params(routed.raw)


async def test_nixl_answers_as_one_engine_does(session: aiohttp.ClientSession) -> None:
    extra = {"a_key_of_tomorrow": {"deep": [1.0, None]}, "big": 2**63 - 1}
    async with (
        serve_engine(EngineConfig(model=MODEL)) as alone,
        serve_engine(EngineConfig(model=MODEL, role="prefill", kv_params_extra=extra)) as prefill,
        serve_engine(EngineConfig(model=MODEL, role="decode")) as d0,
        serve_engine(EngineConfig(model=MODEL, role="decode")) as d1,
        router_process(
            *("--prefill", prefill.url, "--decode", urls([d0, d1])),
            *("--routing-threshold", str(THRESHOLD)),
        ) as router,
    ):
        for path, body in REQUESTS.values():
            await compare(session, router, alone.url, path, body)
        assert moved(d0) + moved(d1) > 0
        assert prefill.state["references"]["read"] == len(REQUESTS)
        assert prefill.state["references"]["altered"] == 0
        assert prefill.state["pinned_blocks"] == 0

        before = moved(d0) + moved(d1)
        await compare(session, router, alone.url, *completion(SHORT, max_tokens=4))
        assert moved(d0) + moved(d1) == before


async def test_engines_that_push_answer_as_one_does(session: aiohttp.ClientSession) -> None:
    """A decode engine gets nothing for a request without the id of its prefill."""
    pushes: dict[str, Any] = {"model": MODEL, "connector": "nixl-push"}
    async with (
        serve_engine(EngineConfig(model=MODEL)) as alone,
        serve_engine(EngineConfig(**pushes, role="prefill")) as prefill,
        serve_engine(EngineConfig(**pushes, role="decode")) as decode,
        router_process(
            *("--prefill", prefill.url, "--decode", decode.url, "--routing-threshold", "0"),
        ) as router,
    ):
        for path, body in REQUESTS.values():
            await compare(session, router, alone.url, path, body)
        await decode.set_faults(fail_kv_loads=1)
        await compare(session, router, alone.url, *REQUESTS["chat, streamed"])
        assert prefill.state["references"]["read"] == len(REQUESTS) + 1
        assert decode.state["tokens"]["local_compute"] == 0


RESPONSES = "/v1/responses"


def response(prompt: str, **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": prompt, "max_output_tokens": 8, "temperature": 0, **more}


def _names(engine: RunningEngine) -> list[str]:
    """The ids of the responses that were asked of it."""
    return [each.body["request_id"] for each in engine.requests if each.path == RESPONSES]


@pytest.mark.parametrize("stored", ["off", "on"])
async def test_responses_of_engines_that_push(session: aiohttp.ClientSession, stored: str) -> None:
    """A response is named by the id that its legs have. Under one id of clients, each gets its own
    answer, and no decode engine waits."""
    pushes: dict[str, Any] = {"model": MODEL, "connector": "nixl-push"}
    async with (
        serve_engine(EngineConfig(model=MODEL)) as alone,
        serve_engine(EngineConfig(**pushes, role="prefill")) as prefill,
        serve_engine(EngineConfig(**pushes, role="decode")) as d0,
        serve_engine(EngineConfig(**pushes, role="decode")) as d1,
        router_process(
            *("--prefill", prefill.url, "--decode", urls([d0, d1]), "--routing-threshold", "0"),
            *("--stored-responses", stored),
        ) as router,
    ):
        for number in range(4):
            body = response(f"{number} {LONG}")
            await compare(session, router, alone.url, RESPONSES, body)
        assert prefill.state["references"]["read"] == 4
        names = {each.url: _names(each) for each in (d0, d1)}
        assert sorted(_names(prefill)) == sorted([*names[d0.url], *names[d1.url]])
        assert len(set(_names(prefill))) == 4
        pool = [Endpoint(url, Role.DECODE) for url in names]
        for keeper in pool:
            for name in names[keeper.url]:
                assert keepers(name, pool) == ((keeper,) if stored == "on" else ())

        asked = [response(f"{number} {LONG[::-1]}", request_id="mine") for number in range(4)]
        await asyncio.gather(
            *(compare(session, router, alone.url, RESPONSES, body) for body in asked)
        )
        assert prefill.state["references"]["read"] == 4


async def test_mooncake_answers_as_one_engine_does(session: aiohttp.ClientSession) -> None:
    known: dict[str, Any] = {"model": MODEL, "connector": "mooncake", "prompt_tokens_details": True}
    async with (
        serve_engine(EngineConfig(model=MODEL, prompt_tokens_details=True)) as alone,
        serve_engine(EngineConfig(**known, role="prefill")) as prefill,
        serve_engine(EngineConfig(**known, role="decode")) as d0,
        serve_engine(EngineConfig(**known, role="decode")) as d1,
        router_process(
            *("--prefill", prefill.url, "--decode", urls([d0, d1])),
            *("--routing-threshold", str(THRESHOLD), *_mooncake(prefill)),
        ) as router,
    ):
        for path, body in REQUESTS.values():
            await compare(session, router, alone.url, path, body)
        assert moved(d0) + moved(d1) > 0
        assert prefill.state["references"]["read"] == len(REQUESTS)
        assert prefill.state["references"]["unknown"] == 0
        assert prefill.state["pinned_blocks"] == 0
        for engine in (d0, d1):
            await engine.set_faults(fail_kv_loads=1)
        await compare(session, router, alone.url, *REQUESTS["chat, streamed"])
        await compare(session, router, alone.url, *REQUESTS["completion"])
        assert d0.state["loads"]["failed"] + d1.state["loads"]["failed"] == 2


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_mooncake_engine_that_restarts_is_used_under_its_new_id(
    session: aiohttp.ClientSession, role: str
) -> None:
    """The answers in between are right, too."""
    flags = ("--connector", "mooncake", "--model", MODEL)
    prefill, decode = Engine(own_port(), *flags), Engine(own_port(), *flags)
    engines = {"prefill": prefill, "decode": decode}
    async with serve_engine(EngineConfig(model=MODEL)) as alone:
        try:
            for name, engine in engines.items():
                await engine.start("--role", name)
            async with serving(
                *("--prefill", prefill.url, "--decode", decode.url, "--routing-threshold", "0"),
                *("--health-check-interval", "0.05", *_mooncake(prefill)),
            ) as router:
                await router.ready()
                for _ in range(2):
                    before = await _read(session, prefill)
                    while await _read(session, prefill) == before:
                        await compare(session, router.url, alone.url, *REQUESTS["completion"])
                    await engines[role].kill()
                    if role == "prefill":
                        await compare(session, router.url, alone.url, *REQUESTS["completion"])
                    await engines[role].start()
                    await router.ready()
        finally:
            for engine in engines.values():
                await engine.kill()


async def _read(session: aiohttp.ClientSession, engine: Engine) -> int:
    """How many KV caches others have taken from it."""
    async with session.get(f"{engine.url}/sim/state") as response:
        count: int = (await response.json())["references"]["read"]
    return count


def _mooncake(prefill: RunningEngine | Engine) -> tuple[str, ...]:
    """Flags of the router: a simulated engine is its own bootstrap server."""
    port = prefill.url.rpartition(":")[2]
    return "--disagg-connector-type", "mooncake", "--mooncake-bootstrap-port", port


@pytest.mark.parametrize("version", ["0.29.0", "0.32.0"])
async def test_behind_nixl_as_many_tokens_are_called_cached_as_by_one_engine(
    session: aiohttp.ClientSession, version: str
) -> None:
    known: dict[str, Any] = {"model": MODEL, "version": version, "prompt_tokens_details": True}
    async with (
        serve_engine(EngineConfig(**known)) as alone,
        serve_engine(EngineConfig(**known, role="prefill")) as prefill,
        serve_engine(EngineConfig(**known, role="decode")) as decode,
        router_process(
            *("--prefill", prefill.url, "--decode", decode.url),
            *("--routing-threshold", str(THRESHOLD)),
        ) as router,
    ):
        for path, body in (completion(LONG, max_tokens=4), chat(LONG, max_tokens=4)):
            for url in (router, alone.url):
                await ask(session, url, path, body)
            await compare(session, router, alone.url, path, body)
            await compare(session, router, alone.url, path, body | STREAM)
        assert moved(decode) > 0


@pytest.mark.parametrize("notify", [True, False])
async def test_lmcache_answers_as_one_engine_does_and_moves_the_kv_cache(
    session: aiohttp.ClientSession, notify: bool, own_port: int
) -> None:
    bind = f"tcp://127.0.0.1:{own_port}"
    lmcache: dict[str, Any] = {"model": MODEL, "connector": "lmcache"}
    async with (
        serve_engine(EngineConfig(model=MODEL)) as alone,
        serve_engine(EngineConfig(**lmcache, role="decode")) as d0,
        serve_engine(EngineConfig(**lmcache, role="decode")) as d1,
        serve_engine(
            EngineConfig(
                **lmcache,
                role="prefill",
                receivers={"h0:7300": d0.url, "h1:7300": d1.url},
                notify=bind.removeprefix("tcp://") if notify else None,
            )
        ) as prefill,
        router_process(
            *("--prefill", prefill.url, "--decode", urls([d0, d1])),
            *("--routing-threshold", str(THRESHOLD), "--disagg-connector-type", "lmcache"),
            *("--decoder-registry", _registry({d0.url: "h0", d1.url: "h1"})),
            *(("--lmcache-notify-bind", bind) if notify else ()),
        ) as router,
    ):
        for path, body in REQUESTS.values():
            await compare(session, router, alone.url, path, body)
        assert moved(d0) + moved(d1) > 0


@pytest.mark.parametrize("delay", [0.0, 3600.0], ids=["published", "late"])
async def test_store_answers_as_one_engine_does_and_prompts_are_found(
    session: aiohttp.ClientSession, tmp_path: Path, delay: float
) -> None:
    """If the store publishes too late, the answers are the same, and the misses are counted."""
    known: dict[str, Any] = {"model": MODEL, "prompt_tokens_details": True}
    shares = known | {"connector": "store", "store": str(tmp_path), "store_delay_s": delay}
    decoding = EngineConfig(**shares, role="decode", prefix_caching=False)
    async with (
        serve_engine(EngineConfig(**known)) as alone,
        serve_engine(EngineConfig(**shares, role="prefill")) as prefill,
        serve_engine(decoding) as d0,
        serve_engine(decoding) as d1,
        router_process(
            *("--prefill", prefill.url, "--decode", urls([d0, d1])),
            *("--routing-threshold", str(THRESHOLD), "--disagg-connector-type", "store"),
        ) as router,
    ):
        for path, body in REQUESTS.values():
            await compare(session, router, alone.url, path, body)
        asked = sum(r.path in (CHAT, COMPLETIONS) for r in prefill.requests)
        assert asked == len(REQUESTS)
        computed = sum(engine.state["tokens"]["local_compute"] for engine in (d0, d1))
        async with session.get(f"{router}/metrics") as response:
            page = await response.text()
        name = 'pd_router_fallbacks_total{leg="decode",reason="store_miss"}'
        [misses] = [float(line.split()[-1]) for line in page.splitlines() if line.startswith(name)]
        if delay:
            assert (moved(d0) + moved(d1), misses) == (0, len(REQUESTS))
        else:
            assert misses == 0
            assert computed < moved(d0) + moved(d1)


def _registry(hosts: Mapping[str, str]) -> str:
    return orjson.dumps(
        {
            url: {
                "receiver_host": host,
                "receiver_init_port": [7300],
                "receiver_alloc_port": [7400],
            }
            for url, host in hosts.items()
        }
    ).decode()


async def test_a_failed_kv_load_is_not_shown_to_the_client(session: aiohttp.ClientSession) -> None:
    async with (
        serve_engine(EngineConfig(model=MODEL)) as alone,
        serve_engine(EngineConfig(model=MODEL, role="prefill")) as prefill,
        serve_engine(EngineConfig(model=MODEL, role="decode")) as decode,
        router_process(
            *("--prefill", prefill.url, "--decode", decode.url, "--routing-threshold", "0"),
        ) as router,
    ):
        for failures in (1, 2):
            for path, body in (REQUESTS["chat, streamed"], REQUESTS["completion"]):
                await decode.set_faults(fail_kv_loads=failures)
                await compare(session, router, alone.url, path, body)
        prefills = [r for r in prefill.requests if r.path in (CHAT, COMPLETIONS)]
        ids = [dict(r.headers).get("x-request-id") for r in prefills]
        assert len(prefills) == 8  # a failed load is prefilled again once, under a new id
        assert len(set(ids)) == 8


@pytest.mark.parametrize("connector", ["nixl", "nixl-push", "mooncake", "store"])
async def test_a_dead_prefill_engine_costs_no_answer(
    session: aiohttp.ClientSession, connector: str, tmp_path: Path
) -> None:
    has_store = connector == "store"
    known: dict[str, Any] = {"model": MODEL, "connector": connector}
    known |= {"store": str(tmp_path)} if has_store else {}
    async with (
        serve_engine(EngineConfig(model=MODEL)) as alone,
        serve_engine(EngineConfig(**known, role="prefill")) as prefill,
        serve_engine(EngineConfig(**known, role="decode")) as decode,
        router_process(
            *("--prefill", prefill.url, "--decode", decode.url, "--routing-threshold", "0"),
            *(("--disagg-connector-type", "store") if has_store else ()),
            *(_mooncake(prefill) if connector == "mooncake" else ()),
        ) as router,
    ):
        await prefill.set_faults(refuse=True)
        prefill.drop_connections()
        for path, body in REQUESTS.values():
            await compare(session, router, alone.url, path, body)
