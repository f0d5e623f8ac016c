"""The live page at /dashboard, without external resources, and its events: one sample a second for
all viewers, while there are any.

The routes are read-only, but a page that was given the key of the admin listener can use the admin
API.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Final, Protocol

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from router.core.errors import NotFound, TooManyViewers
from router.web.openapi import refusals

__all__ = ["FILES", "MAX_VIEWERS", "PATH", "Sampler", "Viewer", "add_dashboard"]

log = logging.getLogger(__name__)

SAMPLE_SECONDS: Final = 1.0
"""Seconds between samples: engines' gauges are scraped as often."""

MAX_VIEWERS: Final = 16
"""Most viewers per process. Each may take a connection and some hundred kilobytes of unsent
samples."""

MAX_UNSENT: Final = 4
"""Most unsent messages (one a second) for a viewer before it is dropped."""

RETRY: Final = b"retry: 1000\n\n"
"""Milliseconds after which a browser reconnects."""


class Source(Protocol):
    """Takes samples."""

    async def sample(self) -> bytes:
        """The current figures, as JSON."""

    def history(self) -> bytes:
        """Data of the last minute's samples, as JSON."""


class Viewer:
    """The server-sent events for one viewer, until it is dropped."""

    def __init__(self, first: bytes) -> None:
        self._unsent: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_UNSENT)
        self._unsent.put_nowait(first)

    def __aiter__(self) -> "Viewer":
        return self

    async def __anext__(self) -> bytes:
        """The next event."""
        event = await self._unsent.get()
        if event is None:
            raise StopAsyncIteration
        return event

    def offer(self, event: bytes) -> bool:
        """Queue an event for the viewer. Returns False if too many are unsent."""
        if self._unsent.full():
            return False
        self._unsent.put_nowait(event)
        return True

    def drop(self) -> None:
        """End the stream of events without the unsent ones."""
        while not self._unsent.empty():
            self._unsent.get_nowait()
        self._unsent.put_nowait(None)


class Sampler:
    """Takes samples from the first viewer until the last one has left.

    `begin` creates the source for such a period. `is_over`: whether the router is shutting
    down, which viewers must not delay.
    """

    def __init__(
        self,
        begin: Callable[[], Source],
        is_over: Callable[[], bool],
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._begin = begin
        self._is_over = is_over
        self._sleep = sleep
        self._viewers: set[Viewer] = set()
        self._connected = 0
        """Viewers with an open connection, including dropped ones."""
        self._source: Source | None = None
        self._last: bytes | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """Whether samples are taken."""
        return self._task is not None

    @property
    def viewers(self) -> int:
        """Number of viewers with an open connection."""
        return self._connected

    @contextmanager
    def watch(self) -> Iterator[Viewer]:
        """Add a viewer for the duration of the context. Raises TooManyViewers."""
        if self._connected >= MAX_VIEWERS:
            raise TooManyViewers(f"{MAX_VIEWERS} viewers are connected already; close one.")
        viewer = self._join()
        self._connected += 1
        try:
            yield viewer
        finally:
            self._connected -= 1
            self._leave(viewer)

    def _join(self) -> Viewer:
        if self._task is None:
            self._source, self._last = self._begin(), None
            self._task = asyncio.get_running_loop().create_task(self._run(self._source))
        assert self._source is not None
        viewer = Viewer(RETRY + _event(self._source.history(), "history"))
        if self._last is not None:
            viewer.offer(self._last)
        self._viewers.add(viewer)
        return viewer

    def _leave(self, viewer: Viewer) -> None:
        self._viewers.discard(viewer)
        if not self._viewers and self._task is not None:
            self._task.cancel()
            self._task = self._source = None

    async def _run(self, source: Source) -> None:
        try:
            while self._viewers and not self._is_over():
                self._last = event = _event(await source.sample())
                for viewer in list(self._viewers):
                    if not viewer.offer(event):
                        self._drop(viewer)
                await self._sleep(SAMPLE_SECONDS)
        except Exception:
            log.exception("dashboard sampling failed; disconnecting viewers")
        for viewer in list(self._viewers):
            self._drop(viewer)
        self._task = self._source = None

    def _drop(self, viewer: Viewer) -> None:
        self._viewers.discard(viewer)
        viewer.drop()


def _event(data: bytes, name: str = "message") -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


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
