"""pd-router check with --prefix-cache events: its lines on KV-cache events are true."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import orjson
import pytest

from router.commands import check, kv_check
from router.settings import load
from router.simulator import EngineConfig, RunningEngine, serve_engine
from tests.discovery.api import Api
from tests.discovery.api import serving as api_server
from tests.e2e.test_discovery import kubeconfig, of

Start = Callable[..., Awaitable[RunningEngine]]
Checked = Callable[..., Awaitable[tuple[int, list[str]]]]

DETAILS = {"prompt_tokens_details": True}


@pytest.fixture
async def simulate() -> AsyncIterator[Start]:
    """Starts simulated engines that publish; they end with the test."""
    async with AsyncExitStack() as stack:

        async def start(*, kv_events: bool = True, **config: Any) -> RunningEngine:
            engine = EngineConfig(kv_events=kv_events, **config)
            return await stack.enter_async_context(serve_engine(engine))

        yield start


@pytest.fixture
def checked(capsys: pytest.CaptureFixture[str]) -> Checked:
    """Runs the command in a thread, since it has an event loop of its own; its status, and the
    lines on events and the last one."""

    async def run(
        *engines: RunningEngine, tries: bool = True, **flags: Any
    ) -> tuple[int, list[str]]:
        given = {"prefix_cache": "events", **flags}
        if engines:
            given["decode"] = ",".join(e.url for e in engines)
        status = await asyncio.to_thread(check.run, load(given), tries=tries)
        lines = capsys.readouterr().out.splitlines()
        return status, [line for line in lines if "KV" in line]

    return run


def named(**sources: RunningEngine) -> str:
    """--kv-events: by URL, the engine whose publisher is named."""
    return orjson.dumps(
        {
            url: {
                "endpoint": engine.engine.events.endpoint,
                "replay_endpoint": engine.engine.events.replay_endpoint,
            }
            for url, engine in sources.items()
        }
    ).decode()


@pytest.mark.parametrize(
    ("version", "size", "form"), [("0.33.0", 16, "maps"), ("0.23.0", 64, "arrays")]
)
async def test_announced_blocks_equal_found_blocks(
    simulate: Start, checked: Checked, version: str, size: int, form: str
) -> None:
    engine = await simulate(version=version, block_size=size, **DETAILS)
    status, lines = await checked(engine, kv_events=named(**{engine.url: engine}))
    assert status == 0, lines
    [line] = lines
    assert line.startswith(f"decode {engine.url} tells of its KV cache at tcp://")
    assert f"events are {form}, blocks have {size} tokens" in line
    found = 2199 // size * size
    assert line.endswith(f"of a prompt of 2200 tokens it announces {found}, and finds as many")


async def test_without_try_no_engine_gets_a_prompt(simulate: Start, checked: Checked) -> None:
    engine = await simulate(**DETAILS)
    status, [line] = await checked(engine, tries=False)
    assert status == 0
    assert line.endswith("; it has announced nothing yet")
    assert not any(each.method == "POST" for each in engine.requests)


async def test_check_suggests_the_flag_for_missing_cached_tokens(
    simulate: Start, checked: Checked
) -> None:
    engine = await simulate()
    status, [line] = await checked(engine)
    assert status == 0
    assert "start it with --enable-prompt-tokens-details" in line


async def test_an_engine_without_events_is_warned_of(
    simulate: Start, checked: Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The silent one is waited for so long; the other has to be subscribed to in this time.
    monkeypatch.setattr(kv_check, "CONNECT_SECONDS", 1.0)
    good, silent = await simulate(**DETAILS), await simulate(kv_events=False)
    status, lines = await checked(good, silent)
    assert status == 0
    assert lines[1].startswith(f"warning: decode {silent.url} offers no KV-cache events")
    assert "start vLLM with --kv-events-config" in lines[1]


async def test_an_engine_without_a_reported_address_uses_its_pods_annotation(
    simulate: Start, checked: Checked, tmp_path: Path
) -> None:
    engine = await simulate(**DETAILS)
    none = "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"  # as vLLM before 0.32
    await engine.set_faults(wire=none, paths=("/kv_event_sources",))
    port = engine.engine.events.endpoint.rpartition(":")[2]
    api = Api()
    annotations = {"pd-router/kv-events-port": port}
    api.put("decode-0", role="decode", annotations=annotations, **of(engine.url))
    async with api_server(api) as url:
        status, [line] = await checked(
            k8s_decode_selector="role=decode",
            k8s_port="http",
            k8s_config_file=str(kubeconfig(tmp_path, url)),
            k8s_namespace="default",
        )
    assert status == 0
    assert line.startswith(f"decode {engine.url} tells of its KV cache at tcp://127.0.0.1:{port}")
    assert line.endswith("and finds as many")


async def test_events_of_another_engine_are_found_out(
    simulate: Start, checked: Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_check, "EVENT_TIMEOUT_SECONDS", 0.2)
    one, other = await simulate(**DETAILS), await simulate(**DETAILS)
    swapped = named(**{one.url: other, other.url: one})
    status, lines = await checked(one, other, kv_events=swapped)
    assert status == 1
    assert all("it announces nothing of a prompt of 2200 tokens" in line for line in lines[:2])
    assert lines[-1] == "The engines answer, but not all KV-cache events are right."


@pytest.mark.parametrize("found", [16, 2175, 2193])
async def test_other_found_blocks_than_announced_are_reported(
    simulate: Start, checked: Checked, monkeypatch: pytest.MonkeyPatch, found: int
) -> None:
    engine = await simulate(**DETAILS)
    monkeypatch.setattr(kv_check, "cached_tokens", lambda _: found)
    status, lines = await checked(engine)
    assert status == 1
    assert f"it announces 2192, finds {found}" in lines[0]


async def test_last_announced_block_need_not_be_found(
    simulate: Start, checked: Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await simulate(**DETAILS)
    monkeypatch.setattr(kv_check, "cached_tokens", lambda _: 2176)
    status, [line] = await checked(engine)
    assert status == 0
    assert "it announces 2192, and finds 2176: with EAGLE or MTP" in line
