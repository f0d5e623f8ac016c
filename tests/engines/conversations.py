"""Conversations on three real engines: what each router finds in their prefix caches.

    python -m tests.engines.conversations [ROUTER ...]

48 conversations of five turns, eight at a time, each turn the whole conversation so far and the
engine's own answers. All of them are twice what one engine's KV cache holds, and two thirds of what
the three hold together. Prints a row per router: the share of prompt tokens that the engines found
in their prefix caches, by their own counters, and the seconds to the first token. Each run begins
with empty caches (its conversations are its own).

A router is a strategy of ours, `NAME/off` or `NAME/events` for one with that --prefix-cache,
`NAME*2` for two routers without reports and `NAME+2` for two with `--peers`, or a program of
`python -m benchmarks peers`. Clients of a router with events ask for `return_token_ids`; if there
is one, all routers have engines that publish.
"""

import argparse
import asyncio
import random
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import aiohttp

from benchmarks.routers.siblings import siblings
from benchmarks.system.ports import free_port
from router.settings.values import Strategy
from tests.engines import lab
from tests.engines.fleet import EVENT_SPECS, MODEL, service
from tests.engines.layout import Layout, layout
from tests.engines.service import Service
from tests.engines.slowed import plain_engines, router_service
from tests.engines.traffic import CHAT, WORDS

__all__ = ["Result", "run"]

ROUTERS = (
    *("round_robin", "shortest_expected_delay/off", "shortest_expected_delay"),
    *("shortest_expected_delay*2", "vllm-router", "smg"),
)
CONVERSATIONS, TURNS, AT_A_TIME = 48, 5, 8
SYSTEM_WORDS, USER_WORDS, TOKENS = 40, 90, 48

CACHE = Path.home() / ".cache/pd-router-peers"
PEERS = {
    "vllm-router": (str(CACHE / "vllm-router/bin/vllm-router"),),
    "smg": (
        str(CACHE / "smg/bin/smg"),
        "launch",
        "--backend",
        "vllm",
        "--disable-tokenizer-autoload",
    ),
}

_COUNTER = re.compile(r"^vllm:prefix_cache_(queries|hits)_total\{[^\n]*\} (\S+)$", re.MULTILINE)


@dataclass
class Result:
    """What came of one router's conversations."""

    router: str
    queries: int = 0
    hits: int = 0
    failed: int = 0
    first: list[float] = field(default_factory=list)
    """Seconds to the first token."""

    @property
    def hit_rate(self) -> float:
        """The share of prompt tokens that were cached."""
        return self.hits / self.queries

    def ttft(self, share: float) -> float:
        """A percentile of the seconds to the first token."""
        ordered = sorted(self.first)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def run(name: str, engines: Sequence[Service], where: Layout) -> Result:
    """All conversations through one kind of router."""
    kind, sign, number = re.split(r"([*+])", f"{name}*1")[:3]
    count = int(number)
    flags = siblings(count) if sign == "+" else [()] * count
    routers = [_router(kind, place, engines, where, own) for place, own in enumerate(flags)]
    for router in routers:
        router.start()
    try:
        for router in routers:
            router.wait_ready(60)
        return await _run(name, [router.url for router in routers], engines)
    finally:
        for router in routers:
            router.stop()


async def _run(name: str, urls: Sequence[str], engines: Sequence[Service]) -> Result:
    result = Result(name)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        before = await _counters(session, engines)
        left = iter(range(CONVERSATIONS))
        clients = (_client(session, urls, name, left, result) for _ in range(AT_A_TIME))
        await asyncio.gather(*clients)
        after = await _counters(session, engines)
    result.queries, result.hits = (new - old for new, old in zip(after, before, strict=True))
    return result


async def _client(
    session: aiohttp.ClientSession,
    urls: Sequence[str],
    name: str,
    left: Iterator[int],
    result: Result,
) -> None:
    for number in left:
        chance = random.Random(f"{name}{number}")
        system = f"{name} {number}: " + " ".join(chance.choices(WORDS, k=SYSTEM_WORDS))
        messages = [{"role": "system", "content": system}]
        for _ in range(TURNS):
            question = " ".join(chance.choices(WORDS, k=USER_WORDS))
            messages.append({"role": "user", "content": question})
            answer = await _ask(session, chance.choice(urls), messages, result)
            messages.append({"role": "assistant", "content": answer})


async def _ask(
    session: aiohttp.ClientSession, url: str, messages: list[dict[str, str]], result: Result
) -> str:
    body: dict[str, Any] = {
        "model": MODEL, "messages": messages, "max_tokens": TOKENS, "min_tokens": TOKENS,
        "temperature": 0, "stream": True, "return_token_ids": "/events" in result.router,
    }  # fmt: skip
    at, text, has_begun = time.monotonic(), "", False
    async with session.post(url + CHAT, json=body) as response:
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            if piece := re.search(rb'"content":"((?:[^"\\]|\\.)*)"', line):
                words = piece.group(1).decode(errors="replace")
                if words and not has_begun:
                    has_begun = True
                    result.first.append(time.monotonic() - at)
                text += words
        result.failed += response.status != 200 or not has_begun
    return text


async def _counters(session: aiohttp.ClientSession, engines: Sequence[Service]) -> tuple[int, int]:
    counts = {"queries": 0.0, "hits": 0.0}
    for engine in engines:
        async with session.get(engine.url + "/metrics") as response:
            for what, value in _COUNTER.findall(await response.text()):
                counts[what] += float(value)
    return int(counts["queries"]), int(counts["hits"])


def _router(
    kind: str, place: int, engines: Sequence[Service], where: Layout, told: Sequence[str]
) -> Service:
    if kind not in PEERS:
        strategy, _, cache = kind.partition("/")
        options = (*told, *(("--prefix-cache", cache) if cache else ()))
        return router_service(strategy, engines, where, name=f"router-{place}", options=options)
    port, metrics = free_port(), str(free_port())
    command = (
        *PEERS[kind],
        *("--host", "127.0.0.1", "--port", str(port), "--prometheus-port", metrics),
        *("--policy", "cache_aware", "--log-level", "error"),
        *("--worker-urls", *(engine.url for engine in engines)),
    )
    return Service(
        name=f"{kind}-{place}",
        url=f"http://127.0.0.1:{port}",
        ready_path="/health",
        command=command,
        environment={},
        run=where.run,
    )


def _print(result: Result) -> None:
    mean = sum(result.first) / len(result.first)
    print(
        f"| {result.router} | {result.hit_rate:.3f} | {1000 * mean:.0f} "
        f"| {1000 * result.ttft(0.5):.0f} | {1000 * result.ttft(0.99):.0f} |",
        flush=True,
    )
    if result.failed:
        print(f"{result.failed} requests failed")


def _named(text: str) -> str:
    """A router's name as on the command line."""
    kind, *several = re.split(r"[*+]", text)
    strategy, _, cache = kind.partition("/")
    is_ours = strategy in get_args(Strategy) and cache in ("", "off", "history", "events")
    if not (is_ours or kind in PEERS) or not all(count.isdecimal() for count in several):
        raise argparse.ArgumentTypeError(f"unknown router {text!r}")
    return text


def _routers() -> list[str]:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("routers", nargs="*", metavar="ROUTER", type=_named, default=ROUTERS)
    return list(parser.parse_args().routers)


def main(routers: Sequence[str]) -> None:
    """Run the conversations through these routers, on engines that are started if need be."""
    where = layout()
    tells = any("/events" in name for name in routers)
    engines = [service(spec, where) for spec in EVENT_SPECS] if tells else plain_engines(where)
    started = lab.start(where, engines)
    print("| router | prefix hits | TTFT mean, ms | p50 | p99 |")
    print("|---|---|---|---|---|")
    try:
        for name in routers:
            _print(asyncio.run(run(name, engines, where)))
    finally:
        for engine in started:
            engine.stop()


if __name__ == "__main__":
    main(_routers())
