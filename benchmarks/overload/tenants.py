"""A polite tenant beside a greedy one, and goodput at twice the load: without and with a queue."""

import asyncio
import contextlib
import random
import time
from collections.abc import Iterator

from benchmarks.overload.processes import process, ready
from benchmarks.streaming.ask import NoAnswer, ask
from benchmarks.system.ports import free_port

__all__ = ["goodput", "tenants"]

ENGINES, SLOTS = 2, 48
STEP_MS = 25
TOKENS = (24, 40)
"""Of an answer, at least and at most: 32 take 0.8 s."""

CAPACITY = ENGINES * SLOTS / (sum(TOKENS) / 2 * STEP_MS / 1e3)
"""Requests per second that the engines can serve."""

GREEDY, POLITE = 500, 8
SECONDS = 16.0
"""Measured, after a third of that."""

GOOD_TTFT = 2.0
"""Seconds: later a first token is of no use."""

DEADLINE = f"x-slo-ttft-ms: {1e3 * GOOD_TTFT:g}"
"""A header that only counts with --request-deadlines."""

ADMISSION = ("--max-in-flight-per-engine", str(SLOTS), "--queue-size", "1000", "--queue-timeout")


@contextlib.contextmanager
def _served(*options: str) -> Iterator[int]:
    """A router's port."""
    first, port = free_port(), free_port()
    urls = ",".join(f"http://127.0.0.1:{first + each}" for each in range(ENGINES))
    simulator = ("--count", str(ENGINES), "--port", str(first), "--max-num-seqs", str(SLOTS))
    serve = ("--host", "127.0.0.1", "--port", str(port), "--log-level", "error")
    with (
        process("router.simulator", *simulator, "--step-ms", str(STEP_MS)),
        process("router", "serve", *serve, "--decode", urls, *options),
    ):
        ready(f"http://127.0.0.1:{port}/ready")
        yield port


class Client:
    """Requests of a tenant; `ttfts` are seconds to the first token of the successes."""

    def __init__(self, port: int, tenant: str, ttfts: list[tuple[float, float]]) -> None:
        self._port = port
        self._tenant = tenant
        self._ttfts = ttfts

    async def ask(self) -> None:
        """One stream."""
        body = b'{"model":"sim","stream":true,"max_tokens":%d,"prompt":"hello"}'
        body %= random.randint(*TOKENS)
        with contextlib.suppress(NoAnswer):
            ttft, _ = await ask(self._port, body, f"authorization: Bearer {self._tenant}", DEADLINE)
            self._ttfts.append((time.perf_counter(), ttft))

    async def ask_for_ever(self) -> None:
        """One after the other, with a pause after a refusal."""
        while True:
            before = len(self._ttfts)
            await self.ask()
            if len(self._ttfts) == before:
                await asyncio.sleep(0.2)


def _p99(ttfts: list[tuple[float, float]], since: float) -> str:
    found = sorted(ttft for ended, ttft in ttfts if ended > since)
    if not found:
        return "no answer"
    p50, p99 = found[len(found) // 2], found[len(found) * 99 // 100]
    return f"TTFT p50 {p50 * 1e3:.0f} ms, p99 {p99 * 1e3:.0f} ms of {len(found)}"


async def _closed_loop(port: int, greedy: int) -> tuple[str, float]:
    """The polite tenant's TTFT, and all requests per second."""
    polite: list[tuple[float, float]] = []
    others: list[tuple[float, float]] = []
    tasks = [
        asyncio.ensure_future(Client(port, name, ttfts).ask_for_ever())
        for name, ttfts, number in (("polite", polite, POLITE), ("greedy", others, greedy))
        for _ in range(number)
    ]
    await asyncio.sleep(SECONDS / 3)
    since = time.perf_counter()
    await asyncio.sleep(SECONDS)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    rate = sum(ended > since for ended, _ in polite + others) / SECONDS
    return _p99(polite, since), rate


async def _open_loop(port: int, rate: float) -> float:
    """Good answers per second."""
    ttfts: list[tuple[float, float]] = []
    tasks: set[asyncio.Task[None]] = set()
    start = due = time.perf_counter()
    while due < start + SECONDS * 4 / 3:
        task = asyncio.ensure_future(Client(port, "all", ttfts).ask())
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        due += random.expovariate(rate)
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
    end = time.perf_counter()
    for task in list(tasks):
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    since = start + SECONDS / 3
    good = sum(since < ended < end and ttft < GOOD_TTFT for ended, ttft in ttfts)
    return good / (end - since)


async def tenants() -> None:
    """The polite tenant's first token."""
    with _served() as port:
        print(f"polite alone: {(await _closed_loop(port, 0))[0]}")
    for name, options in (("without admission", ()), ("with admission", (*ADMISSION, "60"))):
        with _served(*options) as port:
            told, rate = await _closed_loop(port, GREEDY)
            print(f"beside {GREEDY} streams, {name}: {told}; {rate:.0f} requests/s in all")


async def goodput() -> None:
    """At several loads; 1 is the capacity of the engines."""
    for name, options in (
        ("with admission", (*ADMISSION, "1")),
        ("with deadlines", ("--request-deadlines", "on")),
        ("with neither", ()),
    ):
        for load in (0.8, 1.0, 2.0):
            with _served(*options) as port:
                good = await _open_loop(port, load * CAPACITY)
                print(f"{name}, load {load:g}: {good:.0f} good answers/s of {CAPACITY:.0f}")
