"""One run: faults one by one and in pairs, in an order by the seed, and the judgement."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from random import Random
from statistics import median, quantiles
from typing import Any, NamedTuple

from tests.chaos.admission import MAX_IN_FLIGHT, places_kept
from tests.chaos.both_sides import missing, unlike
from tests.chaos.cluster import Cluster, EngineProcess, cluster
from tests.chaos.faults import FAULTS
from tests.chaos.load import Load, questions
from tests.chaos.router_faults import LEFT_OUT, ROUTER_FAULTS

__all__ = ["Verdict", "late", "run"]

EVENTS = "events"
ROUTING = (
    ("shortest_expected_delay", EVENTS),
    ("shortest_expected_delay", "history"),
    ("least_loaded", "off"),
    ("round_robin", "off"),
)
"""How engines are chosen, and how the router knows what their prefix caches hold."""

OUTLIVED = frozenset(
    {
        *("SIGKILL of an engine", "restart on the same port", "SIGSTOP and SIGCONT of an engine"),
        *("connections dropped", "a stalled engine"),
    }
)
"""Faults of one engine, alone, that break no stream with --stream-continuation on."""

QUESTIONS = 48
REQUESTS = 80
"""That end while a fault is in force. For percentiles they are too few: `make chaos` has 2000."""

ENOUGH = 300
"""Streams of which a 99th percentile is judged."""

LATER = 3.0
"""By which factor the 99th percentile of the others may be above what it is with nothing wrong."""

NOTHING = "nothing wrong"

SETTLE_SECONDS = 20.0
"""For what may be there for a while after the last request; idle connections stay for seconds."""

SPARE_DESCRIPTORS = 8
"""Of a probe or a request of the judge that is under way, in several processes."""

SPARE_BYTES = 32 << 20
"""That the workers may have grown by between two rounds of the same load without faults."""


class Others(NamedTuple):
    """Streams that ended right while a fault was in force: seconds to the first token by request
    id, and the engines that the fault was about."""

    first_tokens: Mapping[str, float]
    broken: frozenset[str]

    def seconds(self, records: Mapping[str, Mapping[str, Any]]) -> list[float]:
        """Of those that had nothing to do with these engines; `records` are the router's."""
        return [
            seconds
            for name, seconds in self.first_tokens.items()
            if not _is_hit(records.get(name, {}), self.broken)
        ]


def _is_hit(record: Mapping[str, Any], broken: frozenset[str]) -> bool:
    return bool(record.get("fallbacks") or {record.get("prefill"), record.get("decode")} & broken)


@dataclass
class Verdict:
    """Observations, and the violations among them."""

    seed: int
    ended: dict[str, Counter[str]] = field(default_factory=dict)
    """How requests ended, by the faults that were in force."""
    others: dict[str, Others] = field(default_factory=dict)
    """The requests that a fault was not about, by the faults that were in force."""
    first_tokens: dict[str, list[float]] = field(default_factory=dict)
    """Seconds to the first token of their streams."""
    errors: Counter[str] = field(default_factory=Counter)
    """Answers to clients."""
    memory: tuple[int, int] = (0, 0)
    """Bytes of the workers together, before the first fault and at the end."""
    faults: list[str] = field(default_factory=list)
    """What is wrong."""

    def __str__(self) -> str:
        lines = [f"seed {self.seed}{', streams are continued' if self.seed % 2 else ''}:"]
        lines += [
            f"  {name}: {dict(counts)}{_times(self.first_tokens.get(name, []))}"
            for name, counts in self.ended.items()
        ]
        few = sum(len(seconds) < ENOUGH for seconds in self.first_tokens.values())
        if few:
            lines.append(f"  the others' TTFT is not judged in {few} of {len(self.first_tokens)}")
        lines += [f"  left out: {name}, {why}" for name, why in LEFT_OUT.items()]
        lines += [f"  {count} x {error}" for error, count in self.errors.most_common()]
        before, after = (size >> 20 for size in self.memory)
        lines.append(f"  memory of the workers: {before} and {after} MiB")
        return "\n".join([*lines, *(f"  WRONG {fault}" for fault in self.faults)])


def late(first_tokens: Mapping[str, list[float]]) -> list[str]:
    """Faults of engines that made the others' streams begin much later, where there are enough of
    them. (What is wrong with the router itself concerns all of its streams.)"""
    usual = first_tokens.get(NOTHING, [])
    if len(usual) < ENOUGH:
        return []
    most = LATER * _p99(usual)
    return [
        f"{name}: the others' TTFT p99 is {_p99(seconds):.3f} s, and may be {most:.3f} s"
        for name, seconds in first_tokens.items()
        if ROUTER_FAULTS.keys().isdisjoint(name.split(" + "))
        and len(seconds) >= ENOUGH
        and _p99(seconds) > most
    ]


def _p99(seconds: list[float]) -> float:
    return quantiles(seconds, n=100)[98]


def _times(seconds: list[float]) -> str:
    if len(seconds) < 2:
        return ""
    return (
        f", the others' TTFT p50 {median(seconds) * 1e3:.0f} ms, p99 {_p99(seconds) * 1e3:.0f} ms "
        f"({len(seconds)})"
    )


def _plan(chance: Random, singles: int, pairs: int) -> list[tuple[str, ...]]:
    names = list(FAULTS)
    alone = [(name,) for name in chance.sample(names, min(singles, len(names)))]
    return alone + [tuple(chance.sample(names, 2)) for _ in range(pairs)]


async def run(
    seed: int,
    *,
    singles: int,
    pairs: int,
    requests: int = REQUESTS,
    only: Sequence[str] | None = None,
) -> Verdict:
    """Start everything, break it and judge it. `requests` end while a fault is in force; with
    `only` these faults are all. With an odd seed streams are continued."""
    chance, verdict = Random(seed), Verdict(seed)
    asked = await questions(QUESTIONS)
    strategy, cache = chance.choice(ROUTING)
    continues = bool(seed % 2)
    flags = ("--prefix-cache", cache, "--stream-continuation", "on" if continues else "off")
    async with cluster(
        *flags, load_balancing_strategy=strategy, max_in_flight=MAX_IN_FLIGHT
    ) as found:
        load = Load(found.router.port, asked, chance)
        users = asyncio.create_task(load.run())
        try:
            await load.more(2 * REQUESTS)
            before = found.descriptors(), found.memory()
            plan = [(name,) for name in only] if only else _plan(chance, singles, pairs)
            for names in plan:
                await _break(names, requests, found, load, chance, verdict)
            await _recovered(requests, found, load, verdict)
        finally:
            load.stop()
            await users
        await _judge(found, load, before, verdict)
        if continues:
            verdict.faults += broken(verdict.ended)
        if cache == EVENTS:
            await found.follows_caches()
        verdict.faults += await places_kept(found)
    return verdict


async def _break(
    names: tuple[str, ...],
    requests: int,
    found: Cluster,
    load: Load,
    chance: Random,
    verdict: Verdict,
) -> None:
    before = Counter(load.ended)
    load.first_tokens = {}
    found.broken.clear()
    async with AsyncExitStack() as stack:
        for name in names:
            await stack.enter_async_context(FAULTS[name](found, load, chance))
        await load.more(requests)
        name = " + ".join(names)
        verdict.others[name] = Others(load.first_tokens, frozenset(found.broken))
    await found.is_well()
    load.may_cut = False
    load.log_is_kept()
    verdict.ended[name] = load.ended - before


async def _recovered(requests: int, found: Cluster, load: Load, verdict: Verdict) -> None:
    """Without faults all answers are right."""
    await load.what_is_under_way()
    before, errors = Counter(load.ended), Counter(load.errors)
    load.first_tokens = {}
    await load.more(max(2 * REQUESTS, requests))
    seen = load.ended - before
    verdict.ended[NOTHING] = seen
    verdict.others[NOTHING] = Others(load.first_tokens, frozenset())
    bad = {end: count for end, count in seen.items() if end not in ("right", "left")}
    if bad:
        verdict.faults.append(f"after all faults: {bad}, {dict(load.errors - errors)}")


async def _judge(found: Cluster, load: Load, before: tuple[int, int], verdict: Verdict) -> None:
    verdict.faults += load.wrong
    verdict.errors = load.errors
    await found.is_well(idle=True)
    for engine in found.engines:
        left = await _once_few(partial(_sequences, engine))
        state = await engine.state()
        counts = {
            "references used twice": state["references"]["reused"],
            "references altered": state["references"]["altered"],
            "wrong KV caches": state["loads"]["wrong"],
            "request ids used twice": state["duplicate_request_ids"],
            "sequences left behind": left,
        }
        verdict.faults += [
            f"{engine.url}: {count} {what}" for what, count in counts.items() if count
        ]
    descriptors = await _once_few(partial(_descriptors, found), before[0] + SPARE_DESCRIPTORS)
    verdict.memory = before[1], found.memory()
    if descriptors > before[0] + SPARE_DESCRIPTORS:
        verdict.faults.append(f"{descriptors} descriptors are open, {before[0]} were")
    if verdict.memory[1] > before[1] + SPARE_BYTES:
        verdict.faults.append("the workers' memory has grown")
    await _once_few(partial(_missing, found, load))
    verdict.faults += unlike(load.requests, found.routers.lines)
    records = {line["id"]: line for line in found.routers.lines}
    verdict.first_tokens = {
        name: others.seconds(records) for name, others in verdict.others.items()
    }
    verdict.faults += late(verdict.first_tokens)
    verdict.faults += [
        f"the log has {line}"
        for line in found.routers.records
        if line["level"] == "error"
        and not any(part in line["message"] for part in found.expected_errors)
    ]


def broken(ended: Mapping[str, Counter[str]]) -> list[str]:
    """Faults that have broken streams although another engine could have gone on."""
    return [
        f"{name}: {counts['broken']} streams broke"
        for name, counts in ended.items()
        if name in OUTLIVED and counts["broken"]
    ]


async def _sequences(engine: EngineProcess) -> int:
    state = await engine.state()
    return int(state["running"] + state["waiting"] + state["loading"])


async def _descriptors(found: Cluster) -> int:
    return found.descriptors()


async def _missing(found: Cluster, load: Load) -> int:
    return len(missing(load.requests, found.routers.lines))


async def _once_few(count: Callable[[], Awaitable[int]], most: int = 0) -> int:
    """The count once it is down to `most`, or when its time is over: the last requests and
    unneeded connections end a moment later."""
    end = time.monotonic() + SETTLE_SECONDS
    while (found := await count()) > most and time.monotonic() < end:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    return found
