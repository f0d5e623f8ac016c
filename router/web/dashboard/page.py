"""The live page at /dashboard and its events, without external resources. Its routes are read-only,
but a page that was given the key of the admin listener can use the admin API."""

from importlib.resources import files
from typing import Final

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from router.core.errors import NotFound, TooManyViewers
from router.web.dashboard.sampler import Sampler
from router.web.openapi import refusals

__all__ = ["FILES", "PATH", "add_dashboard"]

PATH: Final = "/dashboard"

HEADERS: Final = {
    # The page shows text from clients and engines: even if it became markup, no script could run or
    # connect.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}

ASSETS: Final = (
    ("dashboard.html", "text/html; charset=utf-8"),
    ("dashboard.css", "text/css; charset=utf-8"),
    ("dashboard.js", "text/javascript; charset=utf-8"),
    ("icon.svg", "image/svg+xml"),
)

FILES: Final = frozenset({PATH, *(f"{PATH}/{name}" for name, _ in ASSETS)})
"""Paths without any data of the router. A browser gets them without a key and then asks for it."""

EVENT_STREAM: Final = "text/event-stream"


class Events(StreamingResponse):
    """The response to one viewer: a stream that lasts until the viewer leaves."""

    def __init__(self, sampler: Sampler) -> None:
        # Otherwise nginx would hold events back until its buffer is full.
        headers = {**HEADERS, "x-accel-buffering": "no"}
        super().__init__((), headers=headers, media_type=EVENT_STREAM)
        self._sampler = sampler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the viewer leaves or is dropped."""
        with self._sampler.watch() as viewer:
            self.body_iterator = viewer
            await super().__call__(scope, receive, send)


def add_dashboard(app: FastAPI, sampler: Sampler) -> None:
    """Add the page, its files and its events."""

    @app.get(
        f"{PATH}/events",
        response_class=Response,
        responses={200: {"content": {EVENT_STREAM: {}}}, **refusals(TooManyViewers)},
    )
    async def events(request: Request) -> Response:
        """The data of the live page once a second, as server-sent events."""
        if request.scope.get("is_head"):
            return Response(media_type=EVENT_STREAM, headers=HEADERS)
        return Events(sampler)

    _add_page(app)


def _add_page(app: FastAPI) -> None:
    folder = files("router.web.dashboard") / "static"
    contents = {name: ((folder / name).read_bytes(), kind) for name, kind in ASSETS}

    def answer(name: str) -> Response:
        content, kind = contents[name]
        return Response(content, media_type=kind, headers=HEADERS)

    @app.get(PATH, response_class=HTMLResponse)
    async def dashboard() -> Response:
        """The live page: engines, load, decisions and changes."""
        return answer("dashboard.html")

    @app.get(f"{PATH}/{{name}}", include_in_schema=False)
    async def asset(name: str) -> Response:
        if name not in contents:
            raise NotFound(f"GET {PATH}/{name}: no such route. Did you mean GET {PATH}?")
        return answer(name)
