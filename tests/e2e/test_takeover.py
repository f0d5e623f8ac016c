"""A new router takes the place of one that serves, and no request is lost: streams, answers on
connections that are kept, and new connections.

By default it takes seconds; `TAKEOVER_REQUESTS=20000 pytest tests/e2e/test_takeover.py` makes so
many.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests import forked
from tests.e2e.process import Process, serving
from tests.e2e.test_membership import simulated
from tests.e2e.worker_processes import served_by, until, workers_of
from tests.net.client import Client, request
from tests.net.harness import Harness, eventually
from tests.net.payloads import COMPLETIONS, DONE, STREAM, token

REQUESTS = int(os.environ.get("TAKEOVER_REQUESTS", "600"))
CLIENTS = 24
ROUTERS = 3
"""One after the other."""


class Load:
    """Clients that stream, clients that keep their connection, and such that open a new one each
    time. What fails is counted, nothing is tried again but what HTTP says may be: a request on a
    connection that its last answer said it would close is sent on another one."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.good = 0
        self.failures: list[str] = []
        self.enough = asyncio.Event()
        self._tasks = [asyncio.ensure_future(self._client(n)) for n in range(CLIENTS)]

    async def _client(self, number: int) -> None:
        streams, keeps = number % 2 == 0, number % 3 != 0
        body = {"model": "sim", "prompt": "hi", "max_tokens": 12, "stream": streams}
        client: Client | None = None
        while not self.enough.is_set():
            try:
                client = client or await Client.open(self.port)
                answer = await client.ask(COMPLETIONS, body)
                closes = answer.values(b"connection") == [b"close"]
                if answer.status != 200 or (streams and not answer.body.endswith(DONE)):
                    self.failures.append(f"{answer.status} {answer.body[-200:]!r}")
                self.good += 1
            except Exception as error:  # noqa: BLE001 - any error means a lost request
                self.failures.append(repr(error))
                closes = True
            if client is not None and (closes or not keeps):
                client.hang_up()
                client = None
        if client is not None:
            client.hang_up()

    async def until(self, good: int) -> None:
        """Wait for so many answers, or for one that is missing."""

        async def there() -> bool:
            return self.good >= good or bool(self.failures)

        await until(there, f"{self.good} answers")

    async def end(self) -> None:
        """Send no more."""
        self.enough.set()
        await asyncio.gather(*self._tasks)


@pytest.mark.parametrize("workers", [(1, 1, 1), (2, 3, 1)])
async def test_nothing_is_lost_while_routers_take_over_from_each_other(
    tmp_path: Path, workers: tuple[int, ...]
) -> None:
    async with simulated(3) as urls:
        flags = [word for url in urls for word in ("--decode", url)]
        flags += ["--takeover", str(tmp_path / "router.sock")]
        async with serving(*flags, "--workers", str(workers[0])) as old:
            await old.ready()
            load = Load(old.port)
            await load.until(REQUESTS // (ROUTERS + 1))
            async with successor(old, *flags, "--workers", str(workers[1])) as new:
                assert await old.status() == 0
                await load.until(2 * REQUESTS // (ROUTERS + 1))
                async with successor(new, *flags, "--workers", str(workers[2])) as last:
                    assert await new.status() == 0
                    await load.until(REQUESTS)
                    await load.end()
                    assert load.failures == []
                    assert load.good >= REQUESTS
                    last.signal(signal.SIGTERM)
                    assert await last.status() == 0
    assert not (tmp_path / "router.sock").exists()
    for process in (old, new, last):
        outcomes = {r["outcome"] for r in process.records if r["message"] == "request"}
        assert outcomes == {"ok"}


async def is_found(flags: Sequence[str]) -> None:
    """Wait until a successor would find the router with these flags: once all its workers listen,
    and not with the first one's /ready."""
    path = Path(flags[flags.index("--takeover") + 1])
    await eventually(path.exists)


@asynccontextmanager
async def successor(old: Process, *flags: str) -> AsyncIterator[Process]:
    """A router that takes the place of `old`."""
    await is_found(flags)
    async with serving(*flags, "--port", str(old.port)) as new:
        yield new


async def test_stream_ends_in_the_old_router(harness: Harness, tmp_path: Path) -> None:
    engine = await harness.engine()
    flags = ("--decode", engine.url, "--takeover", str(tmp_path / "s"))
    async with serving(*flags, "--shutdown-grace", "0") as old:
        await old.ready()
        client, idle = await old.client(), await old.client()
        assert (await idle.get("/version")).status == 200
        await client.send(request(COMPLETIONS, STREAM))
        call = await engine.call()
        call.stream(token("a"))
        answer = await (await client.begin()).until(token("a"))
        async with successor(old, *flags) as new:
            await old.until("another router has taken over")
            assert await idle.ended() == b""  # without a grace it is closed at once
            call.end(token("b"), DONE)
            await answer.rest()
            assert answer.body == token("a") + token("b") + DONE
            assert await old.status() == 0
            assert (await (await new.client()).get("/ready")).status == 200


async def test_a_kept_connection_gets_one_more_answer_with_connection_close(
    harness: Harness, tmp_path: Path
) -> None:
    engine = await harness.engine()
    flags = ("--decode", engine.url, "--takeover", str(tmp_path / "s"), "--admin-port", "0")
    async with serving(*flags, "--shutdown-grace", "3600") as old:
        await old.ready()
        kept = await old.client()
        assert (await kept.get("/ready")).values(b"connection") == []
        async with successor(old, *flags):
            await old.until("another router has taken over")
            answer = await kept.get("/ready")
            assert (answer.status, answer.values(b"connection")) == (200, [b"close"])
            assert await kept.ended() == b""
            assert await old.status() == 0


async def test_signal_ends_a_router_with_long_streams(harness: Harness, tmp_path: Path) -> None:
    engine = await harness.engine()
    flags = ("--decode", engine.url, "--takeover", str(tmp_path / "s"), "--workers", "2")
    async with serving(*flags, "--shutdown-grace", "3600") as old:
        await old.ready()
        client = await old.client()
        await client.send(request(COMPLETIONS, STREAM))
        call = await engine.call()
        call.stream(token("a"))
        answer = await (await client.begin()).until(token("a"))
        async with successor(old, *flags):
            await old.until("another router has taken over")
            old.signal(signal.SIGTERM)
            await old.until("shutting down; a second signal ends at once")  # or the two are one
            old.signal(signal.SIGTERM)
            await answer.rest()
            assert b"shutting down" in answer.body
            assert await old.status() == 0


async def test_failed_successor_changes_nothing(harness: Harness, tmp_path: Path) -> None:
    engine = await harness.engine()
    flags = ("--decode", engine.url, "--takeover", str(tmp_path / "s"))
    async with serving(*flags, "--workers", "2") as old:
        await old.ready()
        await is_found(flags)
        port = str(old.port)
        for wrong in (
            ["--port", port, "--admin-port", "0"],
            ["--port", str(old.port + 1)],
            ["--port", port, "--host", "127.0.0.2"],
        ):
            status, _, said = await forked.ended("pd-router", "serve", *flags, *wrong)
            assert status == 2
            assert "whose place is taken" in said
        client = await old.client()
        assert (await client.get("/ready")).status == 200
        assert served_by(old, client) in workers_of(old)
        client.leave()
        async with successor(old, *flags):  # a good one still can
            assert await old.status() == 0
