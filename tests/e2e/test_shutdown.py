"""A real process and real signals: what is under way ends well, and the status is 0."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson

from tests.net.asks import COMPLETIONS, DONE, STREAM, answer_remotely, error_frame, token
from tests.net.client import Answer, Client, request
from tests.net.engine import Call, ScriptedEngine
from tests.net.house import House, eventually

SECONDS = 60.0
"""A deadline for a process on a busy machine; only a test that fails meets it."""


class Process:
    """`pd-router serve` on a port of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.port = 0
        self.records: list[dict[str, Any]] = []
        self._clients: list[Client] = []
        self._reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            self.records.append(orjson.loads(line))

    async def until(self, message: str) -> dict[str, Any]:
        """The first line of the log that has this message."""
        async with asyncio.timeout(SECONDS):
            while True:
                found = [r for r in self.records if r["message"] == message]
                if found:
                    return found[0]
                assert not self._reading.done(), self.records
                await asyncio.sleep(0.005)

    async def client(self) -> Client:
        """A new connection."""
        client = await Client.open(self.port)
        self._clients.append(client)
        return client

    async def ready(self, status: int = 200) -> Answer:
        """Wait until /ready has this status."""
        async with asyncio.timeout(SECONDS):
            while True:
                answer = await (await self.client()).get("/ready")
                if answer.status == status:
                    return answer
                await asyncio.sleep(0.01)

    async def refuses(self) -> None:
        """Wait until it takes no new connections."""
        async with asyncio.timeout(SECONDS):
            while True:
                try:
                    await self.client()
                except ConnectionRefusedError:
                    return
                await asyncio.sleep(0.01)

    def signal(self, number: int) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    async def status(self) -> int:
        """Wait for its end; the exit status."""
        async with asyncio.timeout(SECONDS):
            await self._reading
            return await self._process.wait()

    async def kill(self) -> None:
        """End it if it still lives."""
        for client in self._clients:
            client.leave()
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._reading


@asynccontextmanager
async def serving(*flags: str) -> AsyncIterator[Process]:
    """A router process; killed at the end if the test has not ended it."""
    command = ("-m", "router.cli", "serve", "--host", "127.0.0.1", "--port", "0")
    process = Process(
        await asyncio.create_subprocess_exec(
            sys.executable, *command, "--log-format", "json", *flags, stderr=asyncio.subprocess.PIPE
        )
    )
    try:
        line = await process.until("listening")
        process.port = int(line["url"].rpartition(":")[2])
        yield process
    finally:
        await process.kill()


async def _streaming(process: Process, engine: ScriptedEngine) -> tuple[Client, Answer, Call]:
    """A stream that has begun."""
    client = await process.client()
    await client.send(request(COMPLETIONS, STREAM))
    call = await engine.call()
    call.stream(token("a"))
    answer = await client.begin()
    return client, await answer.until(token("a")), call


async def test_what_is_under_way_finishes_within_the_grace(house: House) -> None:
    prefill, decode = await house.engine(), await house.engine()
    flags = ("--prefill", prefill.url, "--decode", decode.url, "--shutdown-grace", "3600")
    async with serving(*flags) as process:
        await process.ready()
        idle, late = await process.client(), await process.client()
        assert (await idle.get("/health")).status == 200
        prefill.answer_all(answer_remotely)
        client, answer, call = await _streaming(process, decode)
        prefill.answer_all(lambda call: waiting.append(call))
        waiting: list[Call] = []
        await late.send(request(COMPLETIONS, STREAM))  # between its legs when the signal comes
        await eventually(lambda: waiting)

        process.signal(signal.SIGTERM)
        await process.refuses()
        assert await idle.ended() == b""
        for text in "bcd":
            call.events(token(text))
            await answer.until(token(text))
        call.events(DONE)
        call.end()
        await answer.rest()
        assert answer.body.endswith(token("d") + DONE)
        assert await client.ended() == b""
        answer_remotely(waiting[0])
        last = await decode.call()
        last.stream(token("e"), DONE)
        last.end()
        assert (await late.answer()).body == token("e") + DONE
        assert await process.status() == 0
    records = [r for r in process.records if r["message"] == "request"]
    assert [r["outcome"] for r in records] == ["ok", "ok"]
    assert {r["level"] for r in process.records} == {"info"}


async def test_what_is_not_finished_within_the_grace_ends_with_a_true_error(
    house: House,
) -> None:
    engine = await house.engine()
    async with serving("--decode", engine.url, "--shutdown-grace", "0.1") as process:
        await process.ready()
        streaming, answer, first = await _streaming(process, engine)
        waiting = await process.client()
        await waiting.send(request(COMPLETIONS, {"model": "m", "prompt": "x"}))
        second = await engine.call()
        process.signal(signal.SIGTERM)
        await answer.rest()
        assert answer.body.startswith(token("a"))
        error = error_frame(answer.body)
        assert (error["code"], error["type"]) == (503, "ServiceUnavailableError")
        assert await streaming.ended() == b""
        refusal = await waiting.answer()
        assert refusal.status == 503
        assert refusal.values(b"retry-after") == [b"1"]
        await first.left()
        await second.left()
        assert await process.status() == 0
    records = [r for r in process.records if r["message"] == "request"]
    assert [r["outcome"] for r in records] == ["aborted", "aborted"]


async def test_engines_may_be_absent_at_the_start_and_join_later(house: House) -> None:
    engine = await house.engine(listening=False)
    async with serving("--decode", engine.url) as process:
        client = await process.client()
        assert (await client.get("/health")).status == 200
        assert (await process.ready(503)).error["message"] == "No decode engine is up."
        refused = await client.ask(COMPLETIONS, STREAM)
        assert refused.status == 503
        assert refused.values(b"retry-after") == [b"1"]
        await engine.listen()
        await process.ready(200)
        await client.send(request(COMPLETIONS, STREAM))
        call = await engine.call()
        call.stream(token("a"), DONE)
        call.end()
        assert (await client.answer()).body == token("a") + DONE
        process.signal(signal.SIGINT)
        assert await client.ended() == b""
        assert await process.status() == 0
