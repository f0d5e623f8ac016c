"""The lock-step's client in front of its own engines: no router in between."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from urllib.parse import urlsplit

import pytest

from benchmarks.instructions.load import Load
from benchmarks.instructions.measure import Engines
from benchmarks.routers.fleet import Fleet
from benchmarks.system.processes import Child, StartError

WAIT_S = 60.0


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Child, Fleet]]:
    log = tmp_path_factory.mktemp("lockstep") / "log"
    with Child(["lockstep", "2", "1"], log) as child:
        urls = child.expect("ready", WAIT_S)
        yield child, Fleet(urls["decode"], urls["prefill"])


@pytest.fixture
def engines(process: tuple[Child, Fleet]) -> Engines:
    child, fleet = process
    return Engines(child, Fleet(fleet.decode))


def port(fleet: Fleet) -> int:
    found = urlsplit(fleet.decode[0]).port
    assert found is not None
    return found


@pytest.mark.parametrize(
    "load",
    [
        Load(3),
        Load(1),
        Load(2, stream=True),
        Load(1, stream=True, chunks=100),
        Load(8, stream=True, chunks=100, together=8),
        Load(9, stream=True, together=3),
        Load(2, prompt_bytes=240_000),
        Load(3, prompt_bytes=4000, is_new=True),
    ],
    ids=Load.encode,
)
def test_each_load_is_answered_to_its_end(engines: Engines, load: Load) -> None:
    engines.offer(load, port(engines.fleet))


def test_one_leg_in_place_of_two_is_refused(process: tuple[Child, Fleet]) -> None:
    child, fleet = process
    with pytest.raises(StartError, match="'prefills': 0"):
        Engines(child, fleet).offer(Load(1, stream=True), port(fleet))


@contextlib.asynccontextmanager
async def answering(reply: bytes) -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n", "status 503"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\ndata: {}\n\n..", "1 of 5 events"),
        (b"", "connection lost"),
    ],
)
async def test_a_wrong_answer_is_no_figure(engines: Engines, reply: bytes, reason: str) -> None:
    async with answering(reply) as at:
        with pytest.raises(StartError, match=reason):
            await asyncio.to_thread(engines.offer, Load(1, stream=True), at)
