"""One run: faults one by one and in pairs, in an order that the seed says, and the judgement."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from random import Random

from tests.chaos.cluster import Cluster, cluster
from tests.chaos.faults import FAULTS
from tests.chaos.load import Load, questions

__all__ = ["Verdict", "run"]

EVENTS = "events"
ROUTING = (
    ("shortest_expected_delay", EVENTS),
    ("shortest_expected_delay", "history"),
    ("least_loaded", "off"),
    ("round_robin", "off"),
)
"""How engines are chosen, and how the router knows what their prefix caches hold."""

QUESTIONS = 48
REQUESTS = 80
"""That end while a fault is in force."""

SPARE_DESCRIPTORS = 8
"""Of a probe or a request of the judge that is under way, in several processes."""

SPARE_BYTES = 32 << 20
"""That the workers may have grown by between two rounds of the same load without faults."""


@dataclass
class Verdict:
    """What was seen, and what of it must not be."""

    seed: int
    ended: dict[str, Counter[str]] = field(default_factory=dict)
    """How requests ended, by the faults that were in force."""
    errors: Counter[str] = field(default_factory=Counter)
    """What clients were told."""
    faults: list[str] = field(default_factory=list)
    """What is wrong."""

    def __str__(self) -> str:
        lines = [f"seed {self.seed}:"]
        lines += [f"  {name}: {dict(counts)}" for name, counts in self.ended.items()]
        lines += [f"  {count} x {error}" for error, count in self.errors.most_common()]
        return "\n".join([*lines, *(f"  WRONG {fault}" for fault in self.faults)])


def _plan(chance: Random, singles: int, pairs: int) -> list[tuple[str, ...]]:
    names = list(FAULTS)
    alone = [(name,) for name in chance.sample(names, min(singles, len(names)))]
    return alone + [tuple(chance.sample(names, 2)) for _ in range(pairs)]


async def run(seed: int, *, singles: int, pairs: int) -> Verdict:
    """Start everything, break it and judge it."""
    chance, verdict = Random(seed), Verdict(seed)
    asked = await questions(QUESTIONS)
    strategy, cache = chance.choice(ROUTING)
    flags = ("--prefix-cache", cache)
    async with cluster(*flags, load_balancing_strategy=strategy) as found:
        load = Load(found.router.port, asked, chance)
        users = asyncio.create_task(load.run())
        try:
            await load.more(2 * REQUESTS)
            before = found.descriptors(), found.memory()
            for names in _plan(chance, singles, pairs):
                await _break(names, found, load, chance, verdict)
            await _recovered(found, load, verdict)
        finally:
            load.stop()
            await users
        await _judge(found, load, before, verdict)
        if cache == EVENTS:
            await found.follows_caches()
    return verdict


async def _break(
    names: tuple[str, ...], found: Cluster, load: Load, chance: Random, verdict: Verdict
) -> None:
    before = Counter(load.ended)
    async with AsyncExitStack() as stack:
        for name in names:
            await stack.enter_async_context(FAULTS[name](found, load, chance))
        await load.more(REQUESTS)
    await found.is_well()
    load.may_cut = False
    verdict.ended[" + ".join(names)] = load.ended - before


async def _recovered(found: Cluster, load: Load, verdict: Verdict) -> None:
    """With nothing wrong any more, nothing but right answers comes."""
    await load.more(REQUESTS)  # what was under way
    before = Counter(load.ended)
    await load.more(2 * REQUESTS)
    seen = load.ended - before
    verdict.ended["nothing wrong"] = seen
    bad = {end: count for end, count in seen.items() if end not in ("right", "left")}
    if bad:
        verdict.faults.append(f"after all faults: {bad}")


async def _judge(found: Cluster, load: Load, before: tuple[int, int], verdict: Verdict) -> None:
    verdict.faults += load.wrong
    verdict.errors = load.errors
    await found.is_well(idle=True)
    for engine in found.engines:
        state = await engine.state()
        counts = {
            "references used twice": state["references"]["reused"],
            "references altered": state["references"]["altered"],
            "wrong KV caches": state["loads"]["wrong"],
            "request ids used twice": state["duplicate_request_ids"],
            "sequences left behind": state["running"] + state["waiting"] + state["loading"],
        }
        verdict.faults += [
            f"{engine.url}: {count} {what}" for what, count in counts.items() if count
        ]
    descriptors, memory = found.descriptors(), found.memory()
    if descriptors > before[0] + SPARE_DESCRIPTORS:
        verdict.faults.append(f"{descriptors} descriptors are open, {before[0]} were")
    if memory > before[1] + SPARE_BYTES:
        verdict.faults.append(f"the workers have {memory} bytes, and had {before[1]}")
    verdict.faults += [
        f"the log has {line}"
        for router in found.routers.started
        for line in router.records
        if line["level"] == "error"
        and not any(part in line["message"] for part in found.expected_errors)
    ]
