"""The closed loop: N streams at once, and a new request for each that ends.

One process's part of it: requests take their numbers from a counter shared by all processes,
so there is one loop. It measures its own cost: CPU, and the lateness of its event loop.
"""

import asyncio
import itertools
import ssl
import time
import uuid
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.distributions import percentile
from benchmarks.gate.traffic.generator import ChatStream
from benchmarks.gate.traffic.pace import Pace, RequestTemplate
from benchmarks.streaming.client import Seen, Stream, open_connection
from benchmarks.system.interval_timer import IntervalTimer, Lateness

# Seconds between two measurements of the event loop's lag.
TICK_S = 0.01


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go. `head` has one %b for the request id, three times, and a %d for the
    body's length. With `asks`, its conversations are sent instead of `bodies`, and the second and
    third %b are the conversation's id."""

    host: str
    port: int
    tls: bool
    verify: bool
    head: bytes
    bodies: tuple[bytes, ...]
    timeout: float
    template: RequestTemplate | None = None


@dataclass(frozen=True, slots=True)
class Phase:
    """So many requests by so many streams, and more until `min_seconds` have passed. `offset` is
    where in the data set it begins, `begin` a time of time.monotonic. Where conversations are sent,
    `requests` counts those, `pace` says when they begin, and this process is `part` of so many
    `parts`."""

    streams: int
    requests: int
    offset: int
    begin: float = 0.0
    pace: Pace = field(default_factory=Pace)
    part: int = 0
    parts: int = 1
    min_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Progress:
    """What happened since the last time, and how many are in flight now."""

    in_flight: int
    ended: int
    errors: int
    chunks: int
    firsts: "array[float]"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One process's results of a phase, and its cost. `dropped` requests were due and had not
    been sent when the phase's duration was over."""

    seen: list[Seen]
    cpu: float
    late: "array[float]"
    stopped: bool
    dropped: int = 0

    @property
    def lag_p99_ms(self) -> float:
        """How late the loop was; a phase shorter than a beat was not late."""
        return (percentile(self.late, 99) or 0.0) * 1e3


class Tickets(Protocol):
    """Where numbers come from."""

    def take(self) -> int:
        """The next number, counted from 0 in each phase."""


@dataclass
class Counter:
    """Numbers for one process."""

    value: int = 0

    def take(self) -> int:
        number, self.value = self.value, self.value + 1
        return number


@dataclass
class Tally:
    """Counts since the last report."""

    ended: int = 0
    errors: int = 0
    chunks: int = 0
    firsts: "array[float]" = field(default_factory=lambda: array("d"))


class Load:
    """The streams of one process. A `Crowd`."""

    def __init__(self, target: Target, tickets: Tickets) -> None:
        self.timeout = target.timeout
        self._target, self._tickets = target, tickets
        self._loop = asyncio.get_running_loop()
        self._streams: list[ChatStream] = []
        self._connecting: dict[Stream, asyncio.Task[None]] = {}
        self._phase = Phase(0, 0, 0)
        self._seen: list[Seen] = []
        self._asking: set[Stream] = set()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._stopped = False
        self._tally, self._in_flight = Tally(), 0
        self._tls = _tls(target)

    async def run(self, phase: Phase) -> Outcome:
        """Offer one phase; return when the outcome of every request is known, or it is stopped."""
        self._phase, self._seen, lateness = phase, [], Lateness()
        self._tally, self._over = Tally(), self._loop.create_future()
        self._prepare(phase)
        await asyncio.sleep(max(phase.begin - time.monotonic(), 0.0))
        began, cpu = time.monotonic(), time.process_time()
        timer = IntervalTimer(TICK_S, lambda: None, lateness)
        timer.start(TICK_S)
        if not self._stopped:
            self._start()
            await self._over
        timer.stop()
        cpu = (time.process_time() - cpu) / max(time.monotonic() - began, 1e-9)
        return Outcome(self._seen, cpu, lateness.seconds, self._stopped)

    def _prepare(self, phase: Phase) -> None:
        """All that takes time, before the phase begins."""
        while len(self._streams) < phase.streams:
            self._streams.append(ChatStream(self, self._loop))

    def _start(self) -> None:
        streams = self._streams[: self._phase.streams]
        self._asking = set(streams)
        for stream in streams:
            stream.ask()
        if not self._asking:
            self._end()

    def stop(self) -> None:
        """Cancel the requests in flight, and send no more."""
        self._stopped = True
        for task in self._connecting.values():
            task.cancel()
        for stream in self._streams:
            stream.stop()
        self._end()

    def progress(self) -> Progress:
        """Since the last time."""
        told, self._tally = self._tally, Tally()
        return Progress(self._in_flight, told.ended, told.errors, told.chunks, told.firsts)

    # what streams ask

    def next_request(self) -> tuple[Seen, bytes] | None:
        number, phase, now = self._tickets.take(), self._phase, time.monotonic()
        if number >= phase.requests and now >= phase.begin + phase.min_seconds:
            return None
        bodies = self._target.bodies
        prompt = (phase.offset + number) % len(bodies)
        body, name = bodies[prompt], str(uuid.uuid4()).encode()
        seen = Seen(number, prompt, now)
        self._seen.append(seen)
        self._in_flight += 1
        return seen, self._target.head % (name, name, name, len(body)) + body

    def arrived(self, seen: Seen, chunks: int) -> None:
        self._tally.chunks += chunks
        if seen.first is not None and seen.chunks == chunks:
            self._tally.firsts.append(seen.first - seen.sent)

    def ended(self, seen: Seen) -> None:
        self._in_flight -= 1
        self._tally.ended += 1
        self._tally.errors += seen.error is not None

    def idle(self, stream: Stream) -> None:
        self._asking.discard(stream)
        if not self._asking:
            self._end()

    def connect(self, stream: Stream) -> None:
        if stream not in self._connecting:  # its last request may have timed out while connecting
            self._connecting[stream] = self._loop.create_task(self._open(stream))

    async def _open(self, stream: Stream) -> None:
        try:
            await open_connection(stream, self._target.host, self._target.port, self._tls)
        finally:
            del self._connecting[stream]

    def _end(self) -> None:
        if not self._over.done():
            self._over.set_result(None)


def _tls(target: Target) -> ssl.SSLContext | None:
    if not target.tls:
        return None
    context = ssl.create_default_context()
    if not target.verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def most_in_flight(seen: Sequence[Seen], until: float) -> int:
    """The most requests that were written and had not ended, over all processes. What never ended
    was in flight until the end."""
    written = [(each.written, 1) for each in seen if each.written is not None]
    over = [
        (until if each.ended is None else each.ended, -1)
        for each in seen
        if each.written is not None
    ]
    return max(itertools.accumulate(step for _, step in sorted([*written, *over])), default=0)
