"""Takes one sample a second for all viewers of the live page, while there are any."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from router.core.errors import TooManyViewers

__all__ = ["MAX_VIEWERS", "Sampler", "Viewer"]

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

    `begin` creates the source for such a period. `is_over` tells that the router is shutting down,
    which viewers must not delay.
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
