"""The router's process and its inherited limits."""

import asyncio
import resource
import sys
from collections.abc import Iterator

import orjson
import pytest

from tests.e2e.process import serving
from tests.net.client import request
from tests.net.engine import Call
from tests.net.harness import Harness
from tests.net.payloads import COMPLETIONS, DONE, STREAM, token

SERVE = "-m router serve --host 127.0.0.1 --port 0 --decode http://127.0.0.1:9 --log-format json"

STREAMS = 1000


@pytest.fixture
def files() -> Iterator[None]:
    """As many open files as there may be: a stream takes two here."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("files")
async def test_probes_are_answered_while_a_thousand_streams_are_open(harness: Harness) -> None:
    engine = await harness.engine()
    calls: list[Call] = []

    def begin(call: Call) -> None:
        call.stream(token("a"))
        calls.append(call)

    engine.answer_all(begin)
    async with serving("--decode", engine.url) as process:
        await process.ready()
        clients = [await process.client() for _ in range(STREAMS)]
        for client in clients:
            await client.send(request(COMPLETIONS, STREAM))
        answers = [await (await client.begin()).until(token("a")) for client in clients]
        for path in ("/health", "/ready", "/metrics"):
            assert (await (await process.client()).get(path)).status == 200
        assert len(calls) == STREAMS
        for call in calls:
            call.end(DONE)
        for answer in answers:
            assert (await answer.rest()).body == token("a") + DONE


async def test_the_soft_limit_on_open_files_is_raised_to_the_hard_one() -> None:
    command = f"ulimit -Sn 64; ulimit -Hn 4000; exec {sys.executable} {SERVE}"
    process = await asyncio.create_subprocess_shell(command, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    try:
        said = [orjson.loads(await process.stderr.readline())["message"] for _ in range(2)]
        assert said == ["starting", "listening"]
        assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (4000, 4000)
    finally:
        process.terminate()
        await process.stderr.read()
    assert await process.wait() == 0
