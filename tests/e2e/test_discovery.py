"""A real router finds real engines: by the API server's pods, which become ready, leave and change
roles while it serves, and by a DNS server's records."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.discovery.api import Api
from tests.discovery.api import serving as api_server
from tests.e2e.process import Process, serving
from tests.e2e.test_membership import simulated
from tests.forked import SECONDS
from tests.net.payloads import COMPLETIONS, DONE


def kubeconfig(folder: Path, url: str, token: str = "t") -> Path:
    """A file like that of kubectl."""
    path = folder / "kubeconfig"
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "here",
                "clusters": [{"name": "c", "cluster": {"server": url}}],
                "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
                "users": [{"name": "u", "user": {"token": token}}],
            }
        )
    )
    return path


def of(engine: str, **given: Any) -> dict[str, Any]:
    """A pod on its host's network, whose engine has a port of its own."""
    return {"ip": "127.0.0.1", "ports": (("http", int(engine.rpartition(":")[2])),), **given}


async def states(router: Process) -> dict[str, str]:
    """The engines that the router knows, and their states."""
    answer = await (await router.client()).get("/endpoints")
    return {each["url"]: each["state"] for each in json.loads(answer.body)}


async def until(router: Process, wanted: dict[str, str]) -> None:
    """Wait for these engines in these states."""
    async with asyncio.timeout(SECONDS):
        while (found := await states(router)) != wanted:  # noqa: ASYNC110 - another process's
            await asyncio.sleep(0.05)
    assert found == wanted


async def ask(router: Process, tokens: int = 4) -> None:
    """A stream, which must be whole."""
    body = {"model": "sim", "prompt": "x", "max_tokens": tokens, "stream": True}
    answer = await (await router.client()).ask(COMPLETIONS, body | {"ignore_eos": True})
    assert answer.status == 200, answer.body
    assert answer.body.endswith(DONE)


@asynccontextmanager
async def in_a_cluster(folder: Path) -> AsyncIterator[tuple[Api, Process, list[str]]]:
    """An API server, a router that asks it, and two engines that no pod names yet."""
    api = Api()
    async with api_server(api) as url, simulated(2) as engines:
        flags = ("--k8s-decode-selector", "role=decode", "--k8s-port", "http")
        config = str(kubeconfig(folder, url))
        async with serving(*flags, "--k8s-config-file", config) as router:
            yield api, router, engines


async def test_pods_join_and_leave_while_streams_run(tmp_path: Path) -> None:
    async with in_a_cluster(tmp_path) as (api, router, [first, second]):
        assert await states(router) == {}
        api.put("a", **of(first, ready=False, started=False))
        api.put("a", **of(first))
        await router.ready()
        await ask(router)
        running = asyncio.create_task(ask(router, tokens=400))
        api.put("b", **of(second))
        await until(router, {first: "up", second: "up"})
        api.put("a", **of(first, leaving=True))
        await until(router, {first: "draining", second: "up"})
        api.delete("a")
        await ask(router)
        await running
        await until(router, {second: "up"})


async def test_engines_stay_while_the_api_server_is_away(tmp_path: Path) -> None:
    async with in_a_cluster(tmp_path) as (api, router, [first, second]):
        api.put("a", **of(first))
        await router.ready()
        api.refusals = [503] * 4
        api.cut()
        await asyncio.wait_for(_spent(api), SECONDS)
        await ask(router)
        assert await states(router) == {first: "up"}
        api.put("b", **of(second))
        await until(router, {first: "up", second: "up"})


async def _spent(api: Api) -> None:
    while api.refusals:  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(0.05)
