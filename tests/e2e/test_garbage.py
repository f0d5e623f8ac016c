"""A request's objects are freed with it, without the garbage collector."""

import asyncio
import gc

import aiohttp

from router.settings import Settings
from router.simulator import EngineConfig, serve_engine
from router.web.app import Router
from router.web.server import Server

REQUESTS = 20


async def test_requests_leave_no_reference_cycles() -> None:
    async with serve_engine(EngineConfig(role="decode", model="m")) as engine:
        router = Router(Settings(host="127.0.0.1", port=0, decode=(engine.url,)))
        server = Server(router)
        running = asyncio.create_task(server._serve())
        while not (server.started and router.fleet.is_ready):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}/v1/completions"
        try:
            async with aiohttp.ClientSession() as session:
                for stream in (False, True):
                    body = {"model": "m", "prompt": "hello", "max_tokens": 2, "stream": stream}
                    await _ask(session, url, body)
                    before = _ours(router)
                    for _ in range(REQUESTS):
                        await _ask(session, url, body)
                    assert _ours(router) == before
        finally:
            server.should_exit = True
            await running


async def _ask(session: aiohttp.ClientSession, url: str, body: dict[str, object]) -> None:
    async with session.post(url, json=body) as response:
        assert response.status == 200
        await response.read()


def _ours(router: Router) -> int:
    """Objects of the router's own classes that the collector knows, found before it runs."""
    router.counts.event_buffer.flush()  # what is still to be counted and logged is no garbage
    names = ("ClientRequest", "EngineLeg", "ServedRequest", "Facts", "RequestEnded")
    return sum(type(thing).__name__ in names for thing in gc.get_objects())
