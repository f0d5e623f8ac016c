"""How even the load of engines is: requests come at random moments, to each router in turn, and ten
times a second the engines' own gauges are read."""

import asyncio
import random
from dataclasses import dataclass
from statistics import fmean, pstdev

from benchmarks.replicas.cluster import Cluster, cluster, metrics_of, summed
from benchmarks.streaming.ask import ask

__all__ = ["HEAD", "Evenness", "Load", "measure"]

STEP_MS = 25
WARM_SECONDS = 3.0
"""At the start, which do not count."""

POLL_SECONDS = 0.1

HEAD = (
    f"{'requests':>9}{'spread':>8}{'deviation':>11}{'wait beside free':>18}"
    f"{'TTFT p50':>11}{'p99':>8}{'CPU':>7}"
)


@dataclass(frozen=True, slots=True)
class Load:
    """The load and its engines."""

    engines: int = 8
    slots: int = 8
    tokens: int = 60
    """Of each answer; a token takes 25 ms."""
    share: float = 0.85
    """Share of the engines' capacity."""
    seconds: float = 30.0
    interval: float = 1.0
    """Between two looks of a router at an engine's gauges."""
    seed: int = 1

    @property
    def rate(self) -> float:
        """Requests per second."""
        return self.share * self.engines * self.slots / (self.tokens * STEP_MS / 1000)


@dataclass(frozen=True, slots=True)
class Evenness:
    """Of the engines' requests, over time."""

    requests: float
    """Mean of an engine's."""
    spread: float
    """Mean of the fullest engine's requests less the emptiest one's."""
    deviation: float
    """Mean of the standard deviation over the mean."""
    waiting: float
    """Share of moments in which an engine had more requests than slots while another had free
    ones."""
    first_p50: float
    first_p99: float
    """Seconds to the first token."""
    cpu: float
    """Of all routers, in cores."""

    def __str__(self) -> str:
        return (
            f"{self.requests:>9.2f}{self.spread:>8.2f}{self.deviation:>11.0%}{self.waiting:>18.1%}"
            f"{self.first_p50 * 1000:>8.0f} ms{self.first_p99 * 1000:>5.0f} ms{self.cpu:>7.2f}"
        )


async def _look(engines: list[int], looks: list[list[int]]) -> None:
    while True:
        texts = await asyncio.gather(*map(metrics_of, engines))
        looks.append([round(summed(text, "num_requests_(?:running|waiting)")) for text in texts])
        await asyncio.sleep(POLL_SECONDS)


async def _run(running: Cluster, load: Load) -> Evenness:
    chance = random.Random(load.seed)
    body = b'{"model":"sim","prompt":"Hello","max_tokens":%d,"ignore_eos":true,"stream":true}'
    body %= load.tokens
    first_tokens: list[float] = []
    looks: list[list[int]] = []
    loop = asyncio.get_running_loop()

    async def one(port: int) -> None:
        first_tokens.append((await ask(port, body))[0])

    began, cpu = loop.time(), 0.0
    async with asyncio.TaskGroup() as group:
        looking = group.create_task(_look(running.engines, looks))
        asking = []
        due, number = 0.0, 0
        while due < load.seconds:
            await asyncio.sleep(max(0.0, began + due - loop.time()))
            if due < WARM_SECONDS:
                first_tokens.clear()
                looks.clear()
                cpu = running.cpu_seconds()
            asking.append(group.create_task(one(running.routers[number % len(running.routers)])))
            number += 1
            due += chance.expovariate(load.rate)
        cpu = (running.cpu_seconds() - cpu) / (load.seconds - WARM_SECONDS)
        looking.cancel()
        await asyncio.gather(*asking)
    first_tokens.sort()
    return Evenness(
        fmean(map(fmean, looks)),
        fmean(max(look) - min(look) for look in looks),
        fmean(pstdev(look) / fmean(look) for look in looks if any(look)),
        fmean(max(look) > load.slots > min(look) for look in looks),
        first_tokens[len(first_tokens) // 2],
        first_tokens[len(first_tokens) * 99 // 100],
        cpu,
    )


def measure(load: Load, replicas: int, *, told: bool) -> Evenness:
    """One run."""
    engine = ("--step-ms", str(STEP_MS), "--max-num-seqs", str(load.slots))
    flags = ("--engine-stats-interval", str(load.interval))
    with cluster(load.engines, engine, replicas, told=told, flags=flags) as running:
        return asyncio.run(_run(running, load))
