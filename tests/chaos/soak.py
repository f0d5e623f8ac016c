"""`python -m tests.chaos.soak`: half an hour of a thousand streams while engines join and leave.
Memory, descriptors and the time to the first token stay constant, answers are right, and only
streams of removed engines fail.

It writes a line a minute and compares the last quarter with the second: the first one warms up.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from random import Random
from statistics import median, quantiles
from typing import Any, NamedTuple

import orjson
import uvloop

from router.simulator.model.language import Language, decode, encode
from tests.chaos.cluster import Cluster, cluster
from tests.chaos.load import Question, judge
from tests.chaos.outages import Outages
from tests.net.client import Client, Truncated, request

PAUSE_SECONDS = 0.5
"""Of a user between two streams, at most; some leave in the middle of one."""

PATH = "/v1/completions"
LEAVES = 0.1
TOKENS = (20, 200)

GROWTH = 1.15
"""Of memory, between the second and the last quarter. Allocators' noise is below a tenth."""

SLOWER = 1.5
"""Of the median time to the first token, on a machine that others use as well."""

MUCH_SLOWER = 3.0
"""Of its 99th percentile, which also sees engines that are just gone, or start."""
SPARE_SECONDS = 2.0
"""For the same: a shared machine may stop all processes for a moment."""

SPARE_DESCRIPTORS = 50

GOES_ON = "continued"
"""What the log says of a stream that another engine has finished."""

STEP_MS = 200
"""Between two tokens of a stream: a thousand streams are 5,000 chunks a second, which two cores
that run the engines and the users as well can bear. A machine in overload would show only that."""

PATIENCE_SECONDS = 60.0
"""The router's patience with silent engines: so many users may start at once."""

LOG_SECONDS = 20.0
"""For the log's lines of the last streams; a busy machine needs a part of a second."""

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
    pauses: list[float]
    """Seconds, of the streams that went on with another engine."""

    def __str__(self) -> str:
        p99 = _p99(_seconds([self]))
        pause, longest = median(self.pauses or [0.0]), max(self.pauses, default=0.0)
        return (
            f"{self.memory >> 20} MiB, {self.descriptors} descriptors, {self.ended} streams, "
            f"{self.failed} failed, {len(self.pauses)} continued after a pause of "
            f"{pause:.2f} s (the longest: {longest:.2f}), "
            f"TTFT p50 {median(_seconds([self])) * 1e3:.0f} ms, p99 {p99 * 1e3:.0f} ms"
        )


def answer_to(prompt: str, count: int) -> str:
    """The answer of every healthy engine: so many tokens."""
    language, tokens = Language("sim", 0), encode(prompt)
    state, last, found = language.start(tokens), tokens[-1], []
    for _ in range(count):
        last = language.choose(state, last, end=False)
        state = language.after(state, last)
        found.append(last)
    return decode(found)


class Users:
    """Ask for streams, read them, leave some."""

    def __init__(self, port: int, chance: Random, outages: Outages) -> None:
        self._port = port
        self._chance = chance
        self._outages = outages
        self._asked = 0
        self.first_tokens: list[float] = []
        self.ended = self.failed = 0
        self.wrong: list[str] = []
        """Answers that are not right."""

    async def one(self) -> None:
        """For ever."""
        client: Client | None = None
        while True:
            await asyncio.sleep(self._chance.random() * PAUSE_SECONDS)
            self._asked += 1
            request_id, begin = f"soak-{self._asked}", time.monotonic()
            try:
                client = client or await Client.open(self._port)
                if not await self._stream(client, request_id):
                    client.leave()
                    client = None
            except (Truncated, OSError):
                self._has_failed(request_id, begin)
                client = None

    def _has_failed(self, request_id: str, begin: float) -> None:
        self.failed += 1
        self._outages.failed(request_id, begin, time.monotonic())

    async def _stream(self, client: Client, request_id: str) -> bool:
        chance = self._chance
        body = {
            "model": "sim",
            "stream": True,
            "max_tokens": chance.randint(*TOKENS),
            "prompt": f"{chance.random()} " + "why? " * chance.randint(1, 300),
        }
        start = time.monotonic()
        await client.send(request(PATH, body, (b"x-request-id", request_id.encode())))
        answer = await client.begin()
        while b"data: " not in answer.body and not answer.is_over:  # comments keep it alive
            await answer.more()
        self.first_tokens.append(time.monotonic() - start)
        if chance.random() < LEAVES:
            return False
        await answer.rest()
        self.ended += 1
        text = answer_to(str(body["prompt"]), int(str(body["max_tokens"])))
        end = judge(Question(PATH, body, text), answer)
        if end.startswith("wrong"):
            self.wrong.append(end)
        elif end != "right":
            self._has_failed(request_id, start)
        return answer.values(b"connection") != [b"close"]

    def take(self, found: Cluster) -> Sample:
        """What there was since the last time."""
        pauses = [
            line["pause_s"] for line in found.routers.lines if line["continuation"] == GOES_ON
        ]
        seen = (self.first_tokens, self.ended, self.failed, pauses)
        sample = Sample(found.memory(), found.descriptors(), *seen)
        self.first_tokens, self.ended, self.failed = [], 0, 0
        return sample


async def _engines_come_and_go(found: Cluster, chance: Random, outages: Outages) -> None:
    while True:
        engine = chance.choice(found.engines)
        await asyncio.sleep(5 + chance.random() * 5)
        outages.gone(engine.url, time.monotonic())
        await engine.kill()
        await asyncio.sleep(1 + chance.random() * 3)
        await engine.start()
        outages.back(engine.url, time.monotonic())


async def soak(minutes: float, streams: int, seed: int) -> list[str]:
    """Run; returns the violations."""
    chance = Random(seed)
    async with cluster(*PATIENT, step_ms=STEP_MS, stream_idle_timeout=PATIENCE_SECONDS) as found:
        outages = Outages()
        users = Users(found.router.port, chance, outages)
        tasks = [asyncio.ensure_future(users.one()) for _ in range(streams)]
        tasks.append(asyncio.ensure_future(_engines_come_and_go(found, chance, outages)))
        samples = []
        count = max(4, round(minutes))
        try:
            for number in range(count):
                await asyncio.sleep(minutes * 60 / count)
                outages.explain(found.routers.lines)
                samples.append(users.take(found))
                found.router.records.clear()
                print(f"{(number + 1) * minutes / count:.0f} min: {samples[-1]}", flush=True)
        finally:
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        outages.explain(await _last_lines(found, outages))
        for engine in found.engines:
            await engine.kill()
    crashed = [repr(end) for end in ends if not isinstance(end, asyncio.CancelledError)]
    return [*crashed, *users.wrong, *outages.wrong, *judge_growth(samples)]


async def _last_lines(found: Cluster, outages: Outages) -> list[dict[str, Any]]:
    """The log's lines once they include all failed streams, or after the deadline."""
    with suppress(TimeoutError):
        async with asyncio.timeout(LOG_SECONDS):
            while outages.open - {line["id"] for line in found.routers.lines}:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    return found.routers.lines


def judge_growth(samples: list[Sample]) -> list[str]:
    """What grew between the second quarter and the last."""
    quarter = len(samples) // 4
    before, after = samples[quarter : 2 * quarter], samples[-quarter:]

    def compare(
        name: str, value: Callable[[list[Sample]], float], most: float, spare: float
    ) -> str:
        early, late = value(before), value(after)
        print(f"{name}: {early:.4g} in the second quarter, {late:.4g} in the last")
        return f"{name} grew from {early:.4g} to {late:.4g}" if late > early * most + spare else ""

    found = (
        compare("memory", lambda part: median(each.memory for each in part), GROWTH, 0),
        compare(
            "descriptors",
            lambda part: median(each.descriptors for each in part),
            1.05,
            SPARE_DESCRIPTORS,
        ),
        compare("seconds to the first token", lambda part: median(_seconds(part)), SLOWER, 0),
        compare(
            "their 99th percentile", lambda part: _p99(_seconds(part)), MUCH_SLOWER, SPARE_SECONDS
        ),
    )
    return [line for line in found if line]


def _seconds(samples: list[Sample]) -> list[float]:
    return [seconds for sample in samples for seconds in sample.first_tokens] or [0.0, 0.0]


def _p99(seconds: list[float]) -> float:
    return quantiles(seconds, n=100)[98]


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
