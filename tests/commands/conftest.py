"""Engines for commands to ask, and settings that no environment disturbs."""

import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.calm import calm

__all__ = ["calm"]

TLS = Path(__file__).parent / "tls"

MODELS = {"object": "list", "data": [{"id": "tiny", "object": "model", "max_model_len": 2048}]}

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Engine:
    """An engine's answers by path: a status, a document, or a function; and its recorded requests.

    A path that it does not know is a 404.
    """

    def __init__(self, **answers: Any) -> None:
        self.answers: dict[str, int | dict[str, Any] | str | Answer] = {
            "/health": 200,
            "/version": {"version": "0.32.0"},
            "/v1/models": MODELS,
            **answers,
        }
        self.asked: list[web.Request] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a request."""
        self.asked.append(request)
        answer = self.answers.get(request.path, 404)
        if isinstance(answer, int):
            return web.Response(status=answer)
        if isinstance(answer, str):
            return web.Response(text=answer)
        if isinstance(answer, dict):
            return web.json_response(answer)
        return await answer(request)


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch: pytest.MonkeyPatch, no_settings: None) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
async def start():
    """Starts engines on ports of 127.0.0.1; they end with the test."""
    servers = []

    async def start_engine(engine: Engine, tls: ssl.SSLContext | None = None) -> Engine:
        app = web.Application()
        app.router.add_get("/{path:.*}", engine.answer)
        server = TestServer(app, host="127.0.0.1", scheme="https" if tls else "http")
        await server.start_server(ssl=tls)
        servers.append(server)
        engine.url = f"{server.scheme}://127.0.0.1:{server.port}"
        return engine

    yield start_engine
    for server in servers:
        await server.close()


@pytest.fixture
def closed_url(closed_port):
    """A URL without a listener for the whole test."""
    return f"http://127.0.0.1:{closed_port}"
