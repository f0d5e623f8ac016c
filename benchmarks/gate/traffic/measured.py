"""A phase carried out, and the measured one as a Run: seconds since it began, as microseconds."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from benchmarks.gate.analysis.records import Client, Request, WorkerSample
from benchmarks.gate.traffic.load import Outcome, Phase, Progress, most_in_flight
from benchmarks.gate.traffic.processes import NOTICE_S, STOP_S, GeneratorDied, Generators
from benchmarks.streaming.client import Seen

# Finer than any clock here; gaps in full precision were most of a stored run.
DIGITS = 6


@dataclass(frozen=True, slots=True)
class Offered:
    """What came of a phase. `begin` and `end` are of time.monotonic."""

    begin: float
    end: float
    started_at: datetime
    outcomes: tuple[Outcome, ...]

    @property
    def interrupted(self) -> bool:
        """It was stopped before it was over."""
        return any(each.stopped for each in self.outcomes)

    @property
    def dropped(self) -> int:
        """Requests that were due and never sent."""
        return sum(each.dropped for each in self.outcomes)

    @property
    def seen(self) -> list[Seen]:
        """All requests, in the order in which they were numbered."""
        found = [each for outcome in self.outcomes for each in outcome.seen]
        return sorted(found, key=lambda each: each.number)


async def offer(
    generators: Generators,
    phase: Phase,
    tell: Callable[[int, Progress], None],
    stopped: asyncio.Event,
) -> Offered:
    """Offer a phase until it is over or stopped. Raises GeneratorDied, also where a process does
    not obey."""
    begin, now = time.monotonic() + NOTICE_S, datetime.now(UTC)
    running = asyncio.ensure_future(generators.run(replace(phase, begin=begin), tell))
    stopping = asyncio.ensure_future(stopped.wait())
    try:
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            generators.stop()
            await asyncio.wait({running}, timeout=STOP_S)
        if not running.done():
            raise GeneratorDied(f"a load generator process did not stop within {STOP_S:g} s")
        return Offered(begin, time.monotonic(), now, tuple(running.result()))
    finally:
        for each in (running, stopping):
            each.cancel()
        await asyncio.gather(running, stopping, return_exceptions=True)


def request_of(seen: Seen, begin: float) -> Request:
    """In seconds since the phase began."""

    def since(at: float | None) -> float | None:
        return None if at is None else round(at - begin, DIGITS)

    return Request(
        number=seen.number,
        prompt=seen.prompt,
        worker=seen.worker,
        sent=round(seen.sent - begin, DIGITS),
        first=since(seen.first),
        last=since(seen.last),
        ended=since(seen.ended),
        input_tokens=seen.input_tokens,
        output_tokens=seen.output_tokens,
        status=seen.status,
        error=seen.error,
        gaps=tuple(round(gap, DIGITS) for gap in seen.gaps),
        cancelled=seen.cancelled,
        left=seen.left,
        resent=seen.resent,
    )


def client_of(offered: Offered) -> Client:
    """The busiest process speaks for all."""
    return Client(
        cpu=max(each.cpu for each in offered.outcomes),
        lag_p99_ms=max(each.lag_p99_ms for each in offered.outcomes),
        reached=most_in_flight(offered.seen, offered.end),
    )


@dataclass(frozen=True, slots=True)
class Cached:
    """The share of cached prompt tokens by the server's usage; None if not reported."""

    cached_tokens: int | None
    share: float | None

    @property
    def line(self) -> str:
        """For display."""
        if self.share is None:
            return "the server does not say how many prompt tokens it had cached"
        return f"{self.share:.0%} of prompt tokens were cached by the server"


def cached(seen: Sequence[Seen]) -> Cached:
    """Over the requests with that usage."""
    said = [each for each in seen if each.cached_tokens is not None and each.input_tokens]
    total = sum(each.input_tokens or 0 for each in said)
    if not total:
        return Cached(None, None)
    tokens = sum(each.cached_tokens or 0 for each in said)
    return Cached(tokens, tokens / total)


@dataclass(frozen=True, slots=True)
class Measured:
    """One measured phase, and the failures of the warm-up before it."""

    offered: Offered
    samples: tuple[WorkerSample, ...]
    warmup_requests: int
    warmup_failed: int
