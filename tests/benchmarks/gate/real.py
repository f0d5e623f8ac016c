"""Real processes for the gate's end-to-end tests: simulated engines, a router, the gate itself."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from benchmarks.__main__ import main
from tests import forked, simulated
from tests.e2e.process import serving

VOID_RUNS = 4
"""Void runs allowed before a valid one: another process had the cores."""


async def post(url: str, body: object = None) -> None:
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as reply:
        assert reply.status == 200


@dataclass
class Engines:
    """Simulated engines of one process."""

    process: forked.Process
    urls: list[str]

    async def go_wrong(self, number: int = 0, **faults: object) -> None:
        await post(f"{self.urls[number]}/sim/faults", faults)


@asynccontextmanager
async def engines(count: int = 1, *flags: str) -> AsyncIterator[Engines]:
    usual = ("--step-ms", "5", "--eos-one-in", "0")
    async with simulated.engines(count, *usual, *flags) as (process, urls):
        yield Engines(process, urls)


@asynccontextmanager
async def router(policy: str, engine_urls: list[str]) -> AsyncIterator[str]:
    """The URL of a router in front of whole engines."""
    flags = ("--load-balancing-strategy", policy, "--decode", ",".join(engine_urls))
    async with serving(*flags) as process:
        yield process.url


@dataclass
class Gate:
    """`validate` as a process, and its output."""

    process: forked.Process
    out: Path
    said: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.said)

    async def until(self, words: str) -> None:
        """Wait for a line that begins so."""
        assert self.process.stdout is not None
        async with asyncio.timeout(forked.SECONDS):
            while line := (await self.process.stdout.readline()).decode():
                self.said.append(line)
                if line.startswith(words):
                    return
        raise AssertionError(self.text)

    async def ended(self) -> int:
        """The exit status, after all output."""
        assert self.process.stdout is not None
        async with asyncio.timeout(forked.SECONDS):
            self.said.append((await self.process.stdout.read()).decode())
            return await self.process.wait()

    def result(self, name: str = "profile_export_aiperf.json") -> Any:
        return orjson.loads((self.out / name).read_bytes())

    @property
    def kind(self) -> str:
        return str(self.result()["pd_router"]["diagnosis"]["kind"])

    @property
    def status(self) -> str:
        """As in CTRF."""
        return str(self.result("ctrf.json")["results"]["tests"][0]["status"])


def arguments(url: str, out: Path) -> list[str]:
    """Smoke, on one GPU."""
    asked = ["validate", "--url", url, "--model", "sim", "--gpus", "1"]
    return [*asked, "--profile", "smoke", "--out", str(out)]


def refused(out: Path, *flags: str) -> None:
    """The command in this process: it must not begin."""
    with pytest.raises(SystemExit) as ended:
        main([*arguments("http://127.0.0.1:9", out), *flags])
    assert ended.value.code == 3


@asynccontextmanager
async def gate(url: str, out: Path, *flags: str, **environment: str) -> AsyncIterator[Gate]:
    """Smoke, on one GPU, unless flags say otherwise; standard error is in what it says."""
    async with forked.running(
        *("pd-bench", *arguments(url, out), *flags),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environment or None,
        limit=2**24,
    ) as process:
        yield Gate(process, out)


async def nothing(_it: Gate) -> None:
    """No action during the run."""


async def judged(
    url: str, out: Path, *flags: str, meanwhile: Callable[[Gate], Awaitable[None]] = nothing
) -> tuple[Gate, int]:
    """A run whose client was not the limit, and its exit status.

    A client without a core makes its run void, as it should: such a run is repeated.
    """
    number = 0
    while True:
        async with gate(url, out / str(number), *flags) as it:
            await meanwhile(it)
            status = await it.ended()
        number += 1
        if "VOID: smoke" not in it.text or number > VOID_RUNS:
            return it, status
