"""Lists the workers behind the endpoint, and samples them and the router during the load.

Reads the router's /endpoints, or uses the given workers. Then it samples each worker's /metrics and
the router's view. A worker without an answer is a sample of None. It neither causes nor delays
load.
"""

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

from benchmarks.gate.analysis.records import WorkerSample
from benchmarks.gate.endpoint.control_client import ControlClient, Unanswered

# The list of a router's engines is short, and made in memory.
LIST_TIMEOUT_S = 5.0
# Time-out of a sample: a worker that is too busy to answer has none.
LEAST_TIMEOUT_S = 1.0
# Only shortest_expected_delay minds a slow engine, and slowness is for the gate to find.
STILL_USABLE = frozenset({None, "slow"})
_GAUGE = rb"^%b(?:\{[^}]*\})?[ \t]+(\S+)"
RUNNING, WAITING, KV_USAGE = (
    re.compile(_GAUGE % name, re.MULTILINE)
    for name in (
        rb"vllm:num_requests_running",
        rb"vllm:num_requests_waiting",
        rb"vllm:(?:kv|gpu)_cache_usage_perc",
    )
)

UNKNOWN = (
    "{expected} workers are expected, and the endpoint lists none at /endpoints: is that on the "
    "router's admin port? Then name each with --worker URL"
)

View = Mapping[str, Any]
"""An entry of the router's /endpoints."""
Gauges = tuple[float | None, float | None, float | None]
"""Running, waiting and KV use; None if unknown."""


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers' URLs, and where they are from: "router", "told", or None if there are none."""

    urls: tuple[str, ...]
    source: str | None

    @property
    def line(self) -> str:
        """For display."""
        if self.source is None:
            return (
                "no worker evidence: the endpoint has no /endpoints and no --worker was given, so "
                "a failure cannot be put down to a worker"
            )
        by = "the router's list" if self.source == "router" else "--worker"
        return f"{len(self.urls)} workers, from {by}"

    def unmatched(self, served: set[str]) -> bool:
        """Whether answers name workers other than --worker does: a DNS name and an IP address, say,
        which cannot be matched."""
        return self.source == "told" and bool(served) and served.isdisjoint(self.urls)


async def views(
    control_client: ControlClient, timeout: float = LIST_TIMEOUT_S
) -> dict[str, View] | None:
    """The router's list by URL; None where the endpoint has none."""
    try:
        answer = await control_client.endpoint("/endpoints", timeout=timeout)
    except Unanswered:
        return None
    found = answer.json() if answer.status == 200 else None
    if not isinstance(found, list):
        return None
    entries = [each for each in found if isinstance(each, dict) and "role" in each]
    return {str(each["url"]): each for each in entries if "url" in each} or None


async def discover(control_client: ControlClient, told: Sequence[str]) -> Workers:
    """The given workers, else the router's."""
    if told:
        return Workers(tuple(told), "told")
    found = await views(control_client)
    return Workers((), None) if found is None else Workers(tuple(found), "router")


async def unusable(
    control_client: ControlClient, told: Sequence[str], expected: int | None
) -> str | None:
    """Why workers are missing; None if all are present, or if none are known and none
    `expected`."""
    if told:
        wrong = await _silent(control_client, told)
        there, known = len(told) - len(wrong), len(told)
    elif (found := await views(control_client)) is not None:
        wrong = [f"{url} is {why}" for url, each in found.items() if (why := _unfit(each))]
        serving = [each for each in found.values() if each.get("role") != "prefill"]
        there, known = sum(not _unfit(each) for each in serving), len(serving)
    else:
        return None if expected is None else UNKNOWN.format(expected=expected)
    if not wrong and (expected is None or there >= expected):
        return None
    asked = known if expected is None else max(expected, known)
    return "; ".join([f"{there} of {asked} workers are usable", *wrong])


def _unfit(view: View) -> str | None:
    if (state := view.get("state")) != "up":
        return str(state)
    aside = view.get("exclusion")
    return None if aside in STILL_USABLE else f"set aside: {aside}"


async def _silent(control_client: ControlClient, urls: Sequence[str]) -> list[str]:
    """Workers whose /health is not 200, with the reason."""

    async def why(url: str) -> str | None:
        try:
            answer = await control_client.worker(f"{url}/health", timeout=LIST_TIMEOUT_S)
        except Unanswered as error:
            return str(error)
        return None if answer.status == 200 else f"status {answer.status}"

    reasons = await asyncio.gather(*(why(url) for url in urls))
    return [f"{url}: {reason}" for url, reason in zip(urls, reasons, strict=True) if reason]


def asked_at(url: str) -> tuple[str, str]:
    """A worker's URL and its data-parallel rank, empty for a whole engine: the router's name of a
    rank is http://d0:8000#3."""
    base, _, rank = url.partition("#")
    return base, rank


def of_rank(text: bytes, rank: str) -> bytes:
    """The lines of one rank of an engine's exposition; all, where none is named."""
    label = f'engine="{rank}"'.encode()
    return b"\n".join(line for line in text.split(b"\n") if label in line) if rank else text


def gauges(text: bytes) -> Gauges:
    """Running, waiting and KV use in vLLM's exposition; None if missing.

    An engine with several data-parallel ranks has a line for each: requests add up, and the fullest
    cache is what stops new ones.
    """
    running, waiting, usage = (_numbers(each, text) for each in (RUNNING, WAITING, KV_USAGE))
    return (
        sum(running) if running else None,
        sum(waiting) if waiting else None,
        max(usage, default=None),
    )


def _numbers(pattern: re.Pattern[bytes], text: bytes) -> list[float]:
    try:
        return [float(each) for each in pattern.findall(text)]
    except ValueError:
        return []


class Sampler:
    """Samples while it is entered.

    At each beat the router and all workers are sampled at the same time: views of different seconds
    would look like a backup. Beats do not wait for each other, so a silent worker delays only its
    own beat.
    """

    def __init__(self, control_client: ControlClient, workers: Workers, interval: float) -> None:
        self._control_client, self._workers, self._interval = control_client, workers, interval
        self._timeout = max(interval, LEAST_TIMEOUT_S)
        self._samples: list[WorkerSample] = []
        self._latest: list[WorkerSample] = []
        self._beats: set[asyncio.Task[None]] = set()
        self._clock: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._workers.source is not None:
            self._clock = asyncio.ensure_future(self._tick())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        tasks = [*self._beats, *([] if self._clock is None else [self._clock])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def between(self, begin: float, end: float) -> tuple[WorkerSample, ...]:
        """Those of a phase, in seconds since it began; the bounds are of time.monotonic."""
        return tuple(_since(begin, each) for each in self._samples if begin <= each.at <= end)

    def busiest(self) -> tuple[str, float] | None:
        """The worker with the most requests, by the latest samples."""
        held = [(each.worker, load) for each in self._latest if (load := _held(each))]
        return max(held, key=lambda each: each[1], default=None)

    async def _tick(self) -> None:
        due = time.monotonic()
        while True:
            beat = asyncio.ensure_future(self._beat())
            self._beats.add(beat)
            beat.add_done_callback(self._beats.discard)
            # Samples missed while this process was blocked are skipped.
            due = max(due + self._interval, time.monotonic())
            await asyncio.sleep(due - time.monotonic())

    async def _beat(self) -> None:
        at = time.monotonic()
        workers = {url: asked_at(url) for url in self._workers.urls}
        engines = dict.fromkeys(base for base, _ in workers.values())
        found, said = await asyncio.gather(
            views(self._control_client, self._timeout),
            asyncio.gather(*(self._metrics(base) for base in engines)),
        )
        views_of, text_of = found or {}, dict(zip(engines, said, strict=True))
        self._latest = [
            _sample(at, url, views_of.get(url, {}), gauges(of_rank(text_of[base], rank)))
            for url, (base, rank) in workers.items()
        ]
        self._samples += self._latest

    async def _metrics(self, engine: str) -> bytes:
        """An engine's exposition; empty where it does not answer."""
        try:
            answer = await self._control_client.worker(f"{engine}/metrics", timeout=self._timeout)
        except Unanswered:
            return b""
        return answer.body if answer.status == 200 else b""


def _sample(at: float, url: str, view: View, found: Gauges) -> WorkerSample:
    return WorkerSample(
        at,
        url,
        *found,
        in_flight=_of(view, "in_flight", int),
        exclusion=_of(view, "exclusion", str),
        seconds_per_token=_of(view, "seconds_per_token", float),
    )


def _of(view: View, name: str, kind: type) -> Any:
    value = view.get(name)
    return value if isinstance(value, kind) and not isinstance(value, bool) else None


def _held(sample: WorkerSample) -> float | None:
    if sample.in_flight is not None:
        return sample.in_flight
    return None if sample.running is None else sample.running + (sample.waiting or 0.0)


def _since(begin: float, sample: WorkerSample) -> WorkerSample:
    return replace(sample, at=round(sample.at - begin, 6))
