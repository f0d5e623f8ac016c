"""A hundred engines join and leave under load, with one process and with several: no request is
lost, and no state of removed engines remains."""

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

from tests.e2e.process import serving
from tests.e2e.worker_processes import until, workers_of
from tests.forked import SECONDS
from tests.net.client import Client, request
from tests.net.harness import Harness
from tests.net.payloads import COMPLETIONS, DONE
from tests.simulated import engines as simulated_engines

ENGINES = 100
AT_ONCE = 5
"""Engines that come, and that go, at a time."""

CLIENTS = 12
TOKENS = 24

WAYS = (True, False, False, False)
"""Whether the file names the engines, or an operator adds them."""

GROWTH = 24 << 20
"""Bytes by which a router process may grow while it serves: engines alone would need more if each
left a tenth of what it takes."""

ROLE = {"role": "decode"}


@asynccontextmanager
async def simulated(count: int) -> AsyncIterator[list[str]]:
    """The URLs of decode engines, all in one process."""
    async with simulated_engines(count, "--role", "decode", "--step-ms", "10") as (_, urls):
        yield urls


class Load:
    """Clients that ask all the time, each for one stream after the other."""

    def __init__(self, port: int) -> None:
        self.done = 0
        self.lost: list[str] = []
        self._is_over = False
        self._clients = [asyncio.ensure_future(self._ask(port)) for _ in range(CLIENTS)]

    async def _ask(self, port: int) -> None:
        body = {"model": "sim", "prompt": "x", "max_tokens": TOKENS, "stream": True}
        client = await Client.open(port)
        while not self._is_over:
            answer = await client.ask(COMPLETIONS, body | {"ignore_eos": True})
            events = answer.body.count(b"data: ")
            is_whole = answer.body.endswith(DONE) and b'"finish_reason":"length"' in answer.body
            if answer.status != 200 or not is_whole or events < TOKENS:
                self.lost.append(f"{answer.status} {events} {answer.body[-300:]!r}")
            self.done += 1
        client.leave()

    async def end(self) -> None:
        """Let each have its last answer."""
        self._is_over = True
        async with asyncio.timeout(SECONDS):
            await asyncio.gather(*self._clients)


class Admin:
    """The admin listener. Each request has a connection of its own: any worker may get it."""

    def __init__(self, url: str) -> None:
        self._port = int(url.rpartition(":")[2])

    async def ask(
        self, path: str, body: object = None, method: str = "GET", good: Sequence[int] = (200,)
    ) -> Any:
        """What it answers, if that is good."""
        client = await Client.open(self._port)
        await client.send(request(path, body, method=method))
        answer = await client.answer(method)
        client.leave()
        assert answer.status in good, answer
        return answer

    async def order(self, what: str, url: str, **more: bool) -> None:
        """Add, drain or undrain an engine."""
        await self.ask(f"/admin/engines{what}", {"url": url, **ROLE, **more}, "POST")

    async def is_idle(self, url: str) -> bool:
        """Whether an engine has no requests."""
        found = (await self.ask("/admin/engines")).json["engines"]
        return not any(each["in_flight"] for each in found if each["url"] == url)

    async def remove(self, url: str) -> None:
        """Remove an engine, which may be gone already."""
        await self.ask(f"/admin/engines?url={url}", method="DELETE", good=(200, 404))

    async def states(self) -> dict[str, str]:
        """The engines of the answering worker, with their states."""
        found = (await self.ask("/admin/engines")).json["engines"]
        return {each["url"]: each["state"] for each in found}

    async def all_up(self, urls: Sequence[str]) -> None:
        """Wait until these are the engines, for every worker: many are asked."""

        async def agreed() -> bool:
            expected = dict.fromkeys(urls, "up")
            for _ in range(12):
                if await self.states() != expected:
                    return False
            return True

        await until(agreed, "all are up")

    async def named(self) -> set[str]:
        """The engines that the metrics name."""
        text = (await self.ask("/metrics")).body.decode()
        return set(re.findall(r'endpoint="([^"]*)"', text))


def memory(pid: int) -> int:
    """Resident bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def files(pid: int) -> int:
    """Open files and sockets."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


class File:
    """The file that names engines."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "engines.json"
        self.write([])

    def write(self, urls: Sequence[str]) -> None:
        """Name these, at once."""
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps({"decode": urls}))
        fresh.replace(self.path)


async def exchange(
    file: File, admin: Admin, old: Sequence[str], fresh: Sequence[str], *, by_file: bool
) -> None:
    """Have these engines come, and then those go."""
    if by_file:
        file.write([*old, *fresh])
    else:
        for url in fresh:
            await admin.order("", url)
    await admin.all_up([*old, *fresh])
    if by_file:
        file.write(fresh)
    else:
        for url in old:
            await admin.order("/drain", url)
        await admin.order("/undrain", old[0])
        file.write([])
    for url in old:
        await admin.remove(url)
    await admin.all_up(fresh)


async def test_a_hundred_engines_join_and_leave_under_load(tmp_path: Path) -> None:
    file = File(tmp_path)
    flags = ("--engines-file", str(file.path), "--admin-port", "0", "--workers", "2")
    async with simulated(ENGINES + AT_ONCE) as urls, serving(*flags, "--slow-start", "0") as it:
        admin = Admin((await it.until("listening"))["admin_url"])
        assert (await it.ready(503)).error["message"].endswith("none is known yet.")
        now = urls[:AT_ONCE]
        file.write(now)
        await it.ready()
        await admin.all_up(now)
        load = Load(it.port)
        before: dict[int, tuple[int, int]] = {}
        for place, way in zip(range(AT_ONCE, len(urls), AT_ONCE), cycle(WAYS), strict=False):
            fresh = urls[place : place + AT_ONCE]
            await exchange(file, admin, now, fresh, by_file=way)
            now = fresh
            before = before or {p: (memory(p), files(p)) for p in workers_of(it)}
        await load.end()
        assert load.lost == []
        assert load.done >= ENGINES
        await nothing_is_left(admin, now, before)
        assert before.keys() == set(workers_of(it))
        assert not [record for record in it.records if record["level"] == "error"]


async def nothing_is_left(
    admin: Admin, urls: Sequence[str], before: dict[int, tuple[int, int]]
) -> None:
    """No series, no connection and no memory but of these engines. `before`: memory and open files
    of each process, when there were as many engines and the load."""

    async def forgotten() -> bool:
        return all([await admin.named() == set(urls) for _ in range(8)])

    async def closed() -> bool:
        return all(files(pid) <= then for pid, (_, then) in before.items())

    await until(forgotten, "series are gone")
    await until(closed, "files are closed")
    grown = [memory(pid) - then for pid, (then, _) in before.items()]
    assert all(each < GROWTH for each in grown), grown


async def test_orders_outlive_the_worker_that_obeyed_them(harness: Harness) -> None:
    """All workers follow an order to any of them, and so does the next leader."""
    one, other, third = [await harness.engine() for _ in range(3)]
    flags = ("--decode", f"{one.url},{other.url}", "--admin-port", "0", "--workers", "2")
    async with serving(*flags) as it:
        admin = Admin((await it.until("listening"))["admin_url"])
        await admin.all_up([one.url, other.url])
        for _ in range(8):  # each goes to one of both
            await admin.order("/drain", one.url)
            await admin.order("/undrain", one.url)
        await admin.order("/drain", one.url)
        before = workers_of(it)
        os.kill(min(before), signal.SIGKILL)

        async def is_replaced() -> bool:
            now = workers_of(it)
            return len(now) == 2 and min(before) not in now

        async def agreed() -> bool:
            expected = {one.url: "draining", other.url: "up", third.url: "up"}
            return all([await admin.states() == expected for _ in range(8)])

        await until(is_replaced, "a worker is started in its place")
        await admin.order("", third.url)
        await until(agreed, "all know of the drain, and of the engine that was added")
