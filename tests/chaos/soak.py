"""`python -m tests.chaos.soak`: a thousand streams that come and go, engines too, for half an hour;
memory, descriptors and the time to the first token stay what they were.

It writes a line a minute and compares the last quarter with the second: the first one warms up.
"""

import argparse
import asyncio
import sys
import time
from random import Random
from statistics import median, quantiles
from typing import NamedTuple

import orjson
import uvloop

from tests.chaos.cluster import Cluster, cluster
from tests.net.client import Client, Truncated, request

PAUSE_SECONDS = 0.5
"""Of a user between two streams, at most; some leave in the middle of one."""

LEAVES = 0.1
TOKENS = (20, 200)

GROWTH = 1.15
"""Of memory, between the second and the last quarter. Allocators' noise is below a tenth."""

SLOWER = 1.5
"""Of the median time to the first token, on a machine that others use as well."""

SPARE_DESCRIPTORS = 50

STEP_MS = 200
"""Between two tokens of a stream: a thousand streams are 5,000 chunks a second, which two cores
that run the engines and the users as well can bear. A machine in overload would show only that."""

PATIENCE_SECONDS = 60.0
"""Of the router with engines that say nothing: so many users may begin at once."""

PATIENT = (
    *(
        "--first-byte-timeout",
        f"{PATIENCE_SECONDS:g}",
        "--prefill-timeout",
        f"{PATIENCE_SECONDS:g}",
    ),
    *("--stall-timeout", "10", "--health-check-timeout", "10", "--connect-timeout", "10"),
)


class Sample(NamedTuple):
    """What one minute showed."""

    memory: int
    descriptors: int
    first_tokens: list[float]
    ended: int
    failed: int

    def __str__(self) -> str:
        p99 = quantiles(self.first_tokens or [0.0, 0.0], n=100)[98]
        return (
            f"{self.memory >> 20} MiB, {self.descriptors} descriptors, {self.ended} streams, "
            f"{self.failed} failed, TTFT p50 {median(self.first_tokens or [0.0]) * 1e3:.0f} ms, "
            f"p99 {p99 * 1e3:.0f} ms"
        )


class Users:
    """Ask for streams, read them, leave some."""

    def __init__(self, port: int, chance: Random) -> None:
        self._port = port
        self._chance = chance
        self.first_tokens: list[float] = []
        self.ended = self.failed = 0

    async def one(self) -> None:
        """For ever."""
        client: Client | None = None
        while True:
            await asyncio.sleep(self._chance.random() * PAUSE_SECONDS)
            try:
                client = client or await Client.open(self._port)
                if not await self._stream(client):
                    client.leave()
                    client = None
            except (Truncated, OSError):
                self.failed += 1
                client = None

    async def _stream(self, client: Client) -> bool:
        chance = self._chance
        body = {
            "model": "sim",
            "stream": True,
            "max_tokens": chance.randint(*TOKENS),
            "prompt": f"{chance.random()} " + "why? " * chance.randint(1, 300),
        }
        start = time.monotonic()
        await client.send(request("/v1/completions", body))
        answer = await client.begin()
        await answer.more()
        self.first_tokens.append(time.monotonic() - start)
        if chance.random() < LEAVES:
            return False
        await answer.rest()
        self.ended += 1
        self.failed += answer.status != 200 or b'"error"' in answer.body
        return answer.values(b"connection") != [b"close"]

    def take(self, found: Cluster) -> Sample:
        """What there was since the last time."""
        sample = Sample(
            found.memory(), found.descriptors(), self.first_tokens, self.ended, self.failed
        )
        self.first_tokens, self.ended, self.failed = [], 0, 0
        return sample


async def _engines_come_and_go(found: Cluster, chance: Random) -> None:
    while True:
        engine = chance.choice(found.engines)
        await asyncio.sleep(5 + chance.random() * 5)
        await engine.kill()
        await asyncio.sleep(1 + chance.random() * 3)
        await engine.start()


async def soak(minutes: float, streams: int, seed: int) -> list[str]:
    """Run; returns what is wrong."""
    chance = Random(seed)
    async with cluster(*PATIENT, step_ms=STEP_MS, stream_idle_timeout=PATIENCE_SECONDS) as found:
        users = Users(found.router.port, chance)
        tasks = [asyncio.ensure_future(users.one()) for _ in range(streams)]
        tasks.append(asyncio.ensure_future(_engines_come_and_go(found, chance)))
        samples = []
        count = max(4, round(minutes))
        try:
            for number in range(count):
                await asyncio.sleep(minutes * 60 / count)
                found.router.records.clear()
                samples.append(users.take(found))
                print(f"{(number + 1) * minutes / count:.0f} min: {samples[-1]}", flush=True)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for engine in found.engines:
            await engine.kill()
    return _judge(samples)


def _judge(samples: list[Sample]) -> list[str]:
    quarter = len(samples) // 4
    before, after = samples[quarter : 2 * quarter], samples[-quarter:]

    def compare(name: str, values: list[list[float]], factor: float, spare: float) -> list[str]:
        early, late = (median(each) for each in values)
        print(f"{name}: {early:.4g} in the second quarter, {late:.4g} in the last")
        return (
            [f"{name} grew from {early:.4g} to {late:.4g}"] if late > early * factor + spare else []
        )

    def of(part: list[Sample], name: str) -> list[float]:
        return [float(getattr(sample, name)) for sample in part]

    first = [[t for sample in part for t in sample.first_tokens] for part in (before, after)]
    wrong = compare("memory", [of(before, "memory"), of(after, "memory")], GROWTH, 0)
    wrong += compare(
        "descriptors",
        [of(before, "descriptors"), of(after, "descriptors")],
        1.05,
        SPARE_DESCRIPTORS,
    )
    return wrong + compare("seconds to the first token", first, SLOWER, 0)


def main() -> int:
    """Run; 1 if something grew."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        wrong = runner.run(soak(asked.minutes, asked.streams, asked.seed))
    print(orjson.dumps({"wrong": wrong}).decode())
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
