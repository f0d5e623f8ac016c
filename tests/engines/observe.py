"""The engines' own metrics, and waiting for their values."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.engines.service import Service

__all__ = [
    "Connection",
    "Load",
    "connections",
    "eventually",
    "load",
    "loads",
    "samples",
    "settled",
    "speed_probes",
    "unread",
    "up",
]

T = TypeVar("T")
POLL = 0.05


@dataclass(frozen=True)
class Load:
    """An engine's gauges, and the counters that say what it has done since it started."""

    running: float
    waiting: float
    kv_use: float
    """Share of the KV cache that requests hold, a prefilled one awaiting its decode included."""
    transferred: float
    """Prompt tokens whose KV came from another engine."""
    computed: float
    """Prompt tokens computed here."""
    generated: float
    finished: float
    """Requests that came to their end; aborted ones do not count."""

    @property
    def is_idle(self) -> bool:
        return not (self.running or self.waiting or self.kv_use)


async def load(session: aiohttp.ClientSession, engine: Service) -> Load:
    """Read an engine's /metrics."""
    found = await samples(session, engine)

    def total(name: str, **labels: str) -> float:
        return sum(
            sample.value
            for sample in found
            if sample.name == f"vllm:{name}" and labels.items() <= sample.labels.items()
        )

    return Load(
        running=total("num_requests_running"),
        waiting=total("num_requests_waiting"),
        kv_use=total("kv_cache_usage_perc"),
        transferred=total("prompt_tokens_by_source_total", source="external_kv_transfer"),
        computed=total("prompt_tokens_by_source_total", source="local_compute"),
        generated=total("generation_tokens_total"),
        finished=total("request_success_total"),
    )


async def up(session: aiohttp.ClientSession, router: Service) -> set[str]:
    """The engines that the router holds for ready; it probes one that was away every second."""
    return {
        sample.labels["endpoint"]
        for sample in await samples(session, router)
        if sample.name == "pd_router_endpoint_state"
        and sample.labels["state"] == "up"
        and sample.value
    }


async def speed_probes(
    session: aiohttp.ClientSession, router: Service, endpoint: str
) -> dict[str, float]:
    """How many speed probes of an engine had which outcome."""
    return {
        sample.labels["outcome"]: sample.value
        for sample in await samples(session, router)
        if sample.name == "pd_router_speed_probes_total" and sample.labels["endpoint"] == endpoint
    }


async def samples(session: aiohttp.ClientSession, service: Service) -> list[Sample]:
    """All samples of a service's /metrics."""
    async with session.get(f"{service.url}/metrics") as response:
        text = await response.text()
    return [s for family in text_string_to_metric_families(text) for s in family.samples]


async def loads(session: aiohttp.ClientSession, engines: Iterable[Service]) -> list[Load]:
    """Several engines' loads."""
    return await asyncio.gather(*(load(session, engine) for engine in engines))


async def settled(
    session: aiohttp.ClientSession, engines: Iterable[Service], within: float
) -> list[Load]:
    """The engines' loads once none runs, queues or holds anything. Fails after `within` seconds."""
    targets = list(engines)
    return await eventually(
        lambda: loads(session, targets), lambda seen: all(one.is_idle for one in seen), within
    )


async def eventually(
    look: Callable[[], Awaitable[T]], fits: Callable[[T], bool], within: float
) -> T:
    """Look until what is seen fits, and return it. Fails with the last sight when time is up."""
    deadline = time.monotonic() + within
    while not fits(seen := await look()):
        assert time.monotonic() < deadline, f"after {within} s still {seen}"
        await asyncio.sleep(POLL)
    return seen


@dataclass(frozen=True)
class Connection:
    """The server's side of a TCP connection."""

    unread: int
    """Bytes that arrived and that the server has not read."""
    left: bool
    """Whether the client has closed its side."""


def connections(port: int) -> list[Connection]:
    """All connections to a local port, those included that the server has not accepted yet."""
    established, close_wait = "01", "08"
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    rows = [line.split() for line in lines]
    return [
        Connection(unread=int(row[4].partition(":")[2], 16), left=row[3] == close_wait)
        for row in rows
        if row[1].endswith(f":{port:04X}") and row[3] in (established, close_wait)
    ]


async def unread(engines: Iterable[Service]) -> list[Connection]:
    """Requests that wait in the sockets of frozen engines; probes, those of speed
    included, are shorter than 1,000 bytes."""
    found = [one for engine in engines for one in connections(engine.port)]
    return [one for one in found if one.unread > 1000]
