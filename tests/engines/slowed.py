"""Three real engines, one of them really slowed: the result of each policy.

    python -m tests.engines.slowed [POLICY ...]

A closed loop of streams runs through a router to three whole vLLM engines. After HEALTHY seconds
all processes of one engine are stopped for three quarters of the time (SIGSTOP and SIGCONT in
turns), for SLOWED seconds; then it is left alone for RECOVERED seconds. Prints a row per policy
and phase: answers per second, TTFT, and the slowed engine's share of the answers.
"""

import argparse
import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from benchmarks.system.ports import free_port
from tests.engines import lab
from tests.engines.fleet import MODEL, PLAIN_SPECS
from tests.engines.fleet import service as engine_service
from tests.engines.layout import Layout, layout
from tests.engines.service import Service
from tests.engines.traffic import COMPLETIONS, prompt

__all__ = ["Phase", "Run", "plain_engines", "router_service", "run"]

POLICIES = ("round_robin", "least_loaded", "shortest_expected_delay")
CLIENTS = 24
"""Eight for each of the three engines, and room for all on two of them (max_num_seqs is 16)."""
TOKENS = 64
PERIOD = 0.2
"""Seconds of one SIGSTOP and SIGCONT: far below the stall time-out, far above a step."""
RUNNING_SHARE = 0.25
HEALTHY, SLOWED, RECOVERED = 10.0, 20.0, 20.0
LOOK_SECONDS = 0.25


@dataclass(frozen=True)
class Sent:
    """One answered request; the clock is monotonic."""

    at: float
    first: float
    end: float
    engine: str


@dataclass
class Phase:
    """A part of a run and what was answered of the requests sent in it."""

    name: str
    begun: float
    ended: float = 0.0
    sent: list[Sent] = field(default_factory=list)

    @property
    def per_second(self) -> float:
        """Answers per second."""
        return len(self.sent) / (self.ended - self.begun)

    def ttft(self, share: float) -> float:
        """A percentile of the seconds to the first token."""
        ordered = sorted(one.first - one.at for one in self.sent)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    def share(self, engine: str, since: float = 0.0) -> float:
        """The part of the requests sent `since` seconds into the phase that an engine answered."""
        late = [one for one in self.sent if one.at >= self.begun + since]
        return sum(one.engine == engine for one in late) / max(1, len(late))


@dataclass
class Run:
    """One policy's run; `seen` is what /endpoints said of the slowed engine, with the time."""

    policy: str
    slowed: str
    phases: list[Phase]
    seen: list[tuple[float, dict[str, Any]]]
    failed: int

    def exclusions(self, phase: Phase) -> list[str | None]:
        """Why the slowed engine was excluded, look by look."""
        return [entry["exclusion"] for at, entry in self.seen if phase.begun <= at <= phase.ended]


def plain_engines(where: Layout) -> list[Service]:
    """The three engines, running or not."""
    return [engine_service(spec, where) for spec in PLAIN_SPECS]


async def run(policy: str, engines: Sequence[Service], where: Layout) -> Run:
    """The experiment under one policy."""
    router = router_service(policy, engines, where)
    router.start()
    try:
        router.wait_ready(30)
        return await _run(policy, engines, router)
    finally:
        router.stop()


async def _run(policy: str, engines: Sequence[Service], router: Service) -> Run:
    slowed = engines[0]
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        load = _Load(session, router.url)
        seen: list[tuple[float, dict[str, Any]]] = []
        looking = asyncio.create_task(_look(session, router.url, slowed.url, seen))
        load.start()
        phases = []
        for name, seconds in (("healthy", HEALTHY), ("slowed", SLOWED), ("recovered", RECOVERED)):
            phase = load.phase = Phase(name, time.monotonic())
            phases.append(phase)
            async with _slow(slowed) if name == "slowed" else contextlib.nullcontext():
                await asyncio.sleep(seconds)
            phase.ended = time.monotonic()
        await load.stop()
        looking.cancel()
        return Run(policy, slowed.url, phases, seen, load.failed)


class _Load:
    """A closed loop of streams."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.phase: Phase | None = None
        self.failed = 0
        self._session, self._url = session, url + COMPLETIONS
        self._is_over = False
        self._number = 0
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """All clients at once."""
        self._tasks = [asyncio.create_task(self._client()) for _ in range(CLIENTS)]

    async def stop(self) -> None:
        """Let what was sent be answered."""
        self._is_over = True
        await asyncio.gather(*self._tasks)

    async def _client(self) -> None:
        while not self._is_over:
            self._number += 1
            await self._ask(self._number, self.phase)

    async def _ask(self, number: int, phase: Phase | None) -> None:
        body = {
            "model": MODEL, "prompt": prompt(5000 + number, 20), "max_tokens": TOKENS,
            "min_tokens": TOKENS, "temperature": 0, "stream": True,
        }  # fmt: skip
        at, first = time.monotonic(), None
        async with self._session.post(self._url, json=body) as response:
            async for part in response.content.iter_any():
                first = first or (time.monotonic() if b"data:" in part else None)
            engine = response.headers.get("x-pd-router-endpoint", "")
            if response.status != 200 or first is None:
                self.failed += 1
            elif phase is not None:
                phase.sent.append(Sent(at, first, time.monotonic(), engine))


async def _look(session: aiohttp.ClientSession, router: str, slowed: str, seen: list[Any]) -> None:
    while True:
        async with session.get(router + "/endpoints") as response:
            entry = next(e for e in await response.json() if e["url"] == slowed)
        seen.append((time.monotonic(), entry))
        await asyncio.sleep(LOOK_SECONDS)


@contextlib.asynccontextmanager
async def _slow(engine: Service) -> AsyncIterator[None]:
    """Stop and continue the engine's processes in turns."""

    async def turns() -> None:
        while True:
            engine.freeze()
            await asyncio.sleep(PERIOD * (1 - RUNNING_SHARE))
            engine.thaw()
            await asyncio.sleep(PERIOD * RUNNING_SHARE)

    task = asyncio.create_task(turns())
    try:
        yield
    finally:
        task.cancel()
        engine.thaw()


def router_service(
    policy: str,
    engines: Sequence[Service],
    where: Layout,
    *,
    name: str = "router",
    options: Sequence[str] = (),
) -> Service:
    """A router in front of whole engines, not running."""
    port = free_port()
    options = [*options, "--host", "127.0.0.1", "--port", str(port), "--engine-header", "on"]
    options += ["--load-balancing-strategy", policy]
    options += [word for engine in engines for word in ("--decode", engine.url)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PD_ROUTER_")}
    return Service(
        name=f"{name}-{policy}",
        url=f"http://127.0.0.1:{port}",
        ready_path="/ready",
        command=(sys.executable, "-m", "router", "serve", *options),
        environment=environment,
        run=where.run,
    )


def _print(result: Run) -> None:
    for phase in result.phases:
        found = [reason for reason in result.exclusions(phase) if reason]
        print(
            f"| {result.policy} | {phase.name} | {phase.per_second:.1f} "
            f"| {1000 * phase.ttft(0.5):.0f} | {1000 * phase.ttft(0.99):.0f} "
            f"| {100 * phase.share(result.slowed):.0f} % "
            f"| {len(found)} of {len(result.exclusions(phase))} {' '.join(sorted(set(found)))} |"
        )
    if result.failed:
        print(f"{result.failed} requests failed")


def main(policies: Sequence[str]) -> None:
    """Run the experiment for these policies, on engines that are started for it if need be."""
    where = layout()
    engines = plain_engines(where)
    started = lab.start(where, engines)
    print("| policy | phase | answers/s | TTFT p50, ms | TTFT p99, ms | its share | exclusion |")
    print("|---|---|---|---|---|---|---|")
    try:
        for policy in policies:
            _print(asyncio.run(run(policy, engines, where)))
    finally:
        for engine in started:
            engine.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("policies", nargs="*", default=POLICIES, metavar="POLICY")
    main(parser.parse_args().policies)
