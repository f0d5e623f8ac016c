"""How much of their prompts engines find in their prefix caches, when the turns of conversations
come to any of several routers."""

import asyncio
import random
from dataclasses import dataclass

import orjson

from benchmarks.replicas.cluster import Cluster, cluster, metrics_of, summed
from benchmarks.streaming.ask import ask

__all__ = ["HEAD", "Hits", "measure"]

ENGINES = 8
CONVERSATIONS = 96
SIDE_BY_SIDE = 24
TURNS = 6
PROMPT_CHARACTERS = 2400
"""By the user, in each turn: some 600 tokens."""

TOKENS = 20
"""Of each answer."""

PAUSE_SECONDS = 0.8
"""Between an answer and the next turn, on average."""

PREFILL = 20_000
"""Prompt tokens per second of an engine."""

HEAD = f"{'prefix hits':>13}{'TTFT mean':>12}{'p99':>9}"


@dataclass(frozen=True, slots=True)
class Hits:
    """Of all turns."""

    rate: float
    """Prompt tokens found in prefix caches over those looked up."""
    first_mean: float
    first_p99: float
    """Seconds to the first token."""

    def __str__(self) -> str:
        first = f"{self.first_mean * 1000:>9.0f} ms{self.first_p99 * 1000:>6.0f} ms"
        return f"{self.rate:>13.1%}{first}"


def _text(chance: random.Random) -> str:
    return "".join(chance.choices("abcdefgh ", k=PROMPT_CHARACTERS))


async def _talk(routers: list[int], chance: random.Random, first_tokens: list[float]) -> None:
    prompt = ""
    for _ in range(TURNS):
        prompt += _text(chance)
        body = orjson.dumps(
            {
                "model": "sim",
                "prompt": prompt,
                "max_tokens": TOKENS,
                "ignore_eos": True,
                "stream": True,
            }
        )
        first, _ = await ask(chance.choice(routers), body)
        first_tokens.append(first)
        await asyncio.sleep(chance.expovariate(1 / PAUSE_SECONDS))


async def _run(running: Cluster) -> Hits:
    first_tokens: list[float] = []
    limit = asyncio.Semaphore(SIDE_BY_SIDE)

    async def one(number: int) -> None:
        async with limit:
            await _talk(running.routers, random.Random(number), first_tokens)

    await asyncio.gather(*map(one, range(CONVERSATIONS)))
    texts = await asyncio.gather(*map(metrics_of, running.engines))
    queries, hits = (
        sum(summed(text, f"prefix_cache_{name}_total") for text in texts)
        for name in ("queries", "hits")
    )
    first_tokens.sort()
    mean = sum(first_tokens) / len(first_tokens)
    return Hits(hits / queries, mean, first_tokens[len(first_tokens) * 99 // 100])


def measure(replicas: int, *, told: bool) -> Hits:
    """One run."""
    engine = ("--step-ms", "10", "--prefill-tokens-per-second", str(PREFILL))
    with cluster(ENGINES, engine, replicas, told=told, flags=()) as running:
        return asyncio.run(_run(running))
