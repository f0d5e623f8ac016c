"""pd-router top before a real router."""

import asyncio
import contextlib
import fcntl
import io
import os
import pty
import signal
import struct
import subprocess
import sys
import termios

import pytest
from rich.console import Console, RenderableType

from router.commands import top
from router.commands.flags import UsageError
from tests.e2e.process import serving
from tests.net.conftest import certificate, complaints, harness
from tests.net.engine import LAST_CHUNK, Call, chunk, sse_head
from tests.net.harness import Harness, eventually

__all__ = ["certificate", "complaints", "harness"]

SAMPLE = b'event: message\ndata: {"pools": []}\n\n'


def text_of(shown: RenderableType) -> str:
    """What it looks like on a wide terminal."""
    out = io.StringIO()
    Console(file=out, width=200).print(shown)
    return out.getvalue()


async def test_one_sample_is_printed_with_its_engines(harness: Harness) -> None:
    engine, router = await harness.single()
    out = io.StringIO()
    status = await top._show_one(Console(file=out, width=200), f"http://127.0.0.1:{router.port}")
    assert status == 0
    assert engine.url in out.getvalue()
    assert "1 of 1 up" in out.getvalue()
    await eventually(lambda: not router.router.operators.sampler.is_running)


async def test_without_a_router_it_reports_it(closed_port: int) -> None:
    out = io.StringIO()
    url = f"http://127.0.0.1:{closed_port}"
    assert await top._show_one(Console(file=out, width=200), url) == 1
    assert f"{url}: it cannot be reached" in out.getvalue()


async def test_it_names_the_admin_port_where_there_is_no_page(harness: Harness) -> None:
    router = await harness.router(await harness.engine(), admin_port=0)
    out = io.StringIO()
    url = f"http://127.0.0.1:{router.port}"
    assert await top._show_one(Console(file=out, width=200), url) == 1
    assert "with --admin-port it is on that port" in out.getvalue()


@pytest.mark.parametrize(
    "answer",
    [
        sse_head(b"connection: close") + LAST_CHUNK,
        sse_head(b"connection: close") + chunk(SAMPLE) + LAST_CHUNK,
        b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 6\r\n\r\n<html>",
    ],
    ids=["no sample", "one sample", "no stream"],
)
async def test_without_a_second_sample_it_reports_it(harness: Harness, answer: bytes) -> None:
    peer = await harness.engine()

    def play(call: Call) -> None:
        call.send(answer)
        call.close()

    peer.answer_all(play)
    out = io.StringIO()
    assert await top._show_one(Console(file=out, width=200), peer.url) == 1
    assert f"{peer.url}: it ended the connection before the second sample" in out.getvalue()


async def test_it_follows_a_router_that_is_restarted(harness: Harness, own_port: int) -> None:
    engine = await harness.engine()
    flags = ("--decode", engine.url, "--admin-port", str(own_port))
    seen: list[str] = []

    async def until(text: str) -> None:
        seen.clear()
        await eventually(lambda: any(text in each for each in seen), lambda: seen)

    following = asyncio.ensure_future(
        top._follow(f"http://127.0.0.1:{own_port}", lambda shown: seen.append(text_of(shown)))
    )
    await until("trying again")
    for _ in range(2):
        async with serving(*flags):
            await until("1 of 1 up")
        await until("trying again")
    following.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await following


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "http://"])
def test_invalid_urls_are_refused(url: str) -> None:
    with pytest.raises(UsageError, match="URL: "):
        top.run(url)


async def test_on_a_terminal_it_runs_until_ctrl_c(harness: Harness) -> None:
    engine, router = await harness.single()
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
    command = [sys.executable, "-m", "router", "top", f"http://127.0.0.1:{router.port}"]
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, env={**os.environ, "TERM": "xterm"}
    ) as process:
        os.close(theirs)
        loop, found = asyncio.get_running_loop(), bytearray()
        loop.add_reader(ours, lambda: found.extend(_read(ours)))
        for _ in range(2):  # one sample after the other
            found.clear()
            await eventually(lambda: engine.url.encode() in found, lambda: bytes(found))
        process.send_signal(signal.SIGINT)
        await eventually(lambda: process.poll() is not None)
        loop.remove_reader(ours)
        assert process.returncode == 0
    os.close(ours)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # the other end is closed
        return b""
