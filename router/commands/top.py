"""pd-router top: the live page in a terminal, from the same events."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import aiohttp
import orjson
from rich.console import Console, Group, RenderableType
from rich.live import Live

from router.commands.console import UNBOUNDED, cell, make_console
from router.commands.drain import admin_headers
from router.commands.flags import UsageError
from router.commands.top_view import History, view
from router.core.urls import origin

__all__ = ["run"]

PATH: Final = "/dashboard/events"

RETRY_SECONDS: Final = 1.0

SILENT_SECONDS: Final = 10.0
"""Seconds without a sample after which the connection counts as lost; samples come once a
second."""

MAX_EVENT_BYTES: Final = 64 << 20
"""Largest event in bytes: the first one contains a minute's history of all engines."""


NO_KEY: Final[Mapping[str, str]] = MappingProxyType({})


class Unreachable(Exception):
    """There is no stream of samples; the message says why."""


def run(url: str, *, once: bool = False, key_file: Path | None = None) -> int:
    """Show samples until Ctrl-C, or only one. Returns 0, or 1 if there was none."""
    try:
        base = origin(url).url
    except ValueError as error:
        raise UsageError(f"URL: {error}") from None
    headers = admin_headers(key_file)
    console = make_console()
    if once or not console.is_terminal:
        return asyncio.run(_show_one(console, base, headers))
    return asyncio.run(_show_all(console, base, headers))


async def _show_one(console: Console, base: str, headers: Mapping[str, str] = NO_KEY) -> int:
    history = History()
    try:
        sample = await _second(base, headers)
    except Unreachable as error:
        console.print(cell(f"{base}: {error}"))
        return 1
    history.add(sample)
    console.print(view(sample, history, console.width))
    return 0


async def _second(base: str, headers: Mapping[str, str]) -> Any:
    """The second sample, because a first one has no rates. Raises Unreachable."""
    samples = _samples(base, headers)
    await anext(samples, None)
    sample = await anext(samples, None)
    await samples.aclose()  # type: ignore[attr-defined]
    if sample is None:
        raise Unreachable("it ended the connection before the second sample: is it a router?")
    return sample


async def _show_all(console: Console, base: str, headers: Mapping[str, str]) -> int:
    task = asyncio.current_task()
    assert task is not None, "it runs in one"
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, task.cancel)
    with Live(console=console, screen=True, auto_refresh=False) as live:

        def show(shown: RenderableType) -> None:
            live.update(shown, refresh=True)

        with contextlib.suppress(asyncio.CancelledError):
            await _follow(base, show, headers, lambda: console.size)
    return 0


async def _follow(
    base: str,
    show: Callable[[RenderableType], None],
    headers: Mapping[str, str] = NO_KEY,
    size: Callable[[], tuple[int, int]] = lambda: (UNBOUNDED, UNBOUNDED),
) -> None:
    """Show samples in a terminal of the current `size`. Reconnects if the router is restarted."""
    history = History()
    last: RenderableType = cell("")
    while True:
        why = "the router ended the connection"
        try:
            async for sample in _samples(base, headers):
                history.add(sample)
                last = view(sample, history, *size())
                show(last)
        except Unreachable as error:
            why = str(error)
        show(Group(cell(f"{base}: {why}; trying again", style="red"), last))
        await asyncio.sleep(RETRY_SECONDS)


async def _samples(base: str, headers: Mapping[str, str]) -> AsyncIterator[Any]:
    """Yields the samples of one connection. Raises Unreachable."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=SILENT_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, read_bufsize=MAX_EVENT_BYTES) as session,
            session.get(base + PATH, headers=headers) as answer,
        ):
            if answer.status != 200:
                raise Unreachable(_refusal(answer.status))
            async for sample in _messages(answer.content):
                yield sample
    except TimeoutError:
        raise Unreachable(f"it sent nothing for {SILENT_SECONDS:g} s") from None
    except aiohttp.ClientError as error:
        raise Unreachable(f"it cannot be reached: {error}") from None


async def _messages(content: aiohttp.StreamReader) -> AsyncIterator[Any]:
    """Yields the data of messages; other events are skipped."""
    name = b""
    async for line in content:
        if line.startswith(b"event: "):
            name = line.removeprefix(b"event: ").strip()
        elif line.startswith(b"data: ") and name == b"message":
            yield orjson.loads(line.removeprefix(b"data: "))


def _refusal(status: int) -> str:
    match status:
        case 401:
            return "it wants a key, or another one: name its file by --admin-key-file"
        case 404:
            return "there is no live page; with --admin-port it is on that port"
        case 503:
            return "it has as many viewers as it may have, or is shutting down"
    return f"it answered with status {status}"
