"""One closed-loop client: a connection that asks, reads the whole answer and asks again.

Knows HTTP framing (httptools) and how many events an answer must have.
"""

import asyncio
import time
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol, cast

import httptools

from benchmarks.spans import Span
from benchmarks.sse import EventCounter


@dataclass
class Record:
    """What one phase of a load saw. Times in seconds."""

    requests: int = 0
    events: int = 0
    reads: int = 0
    connects: int = 0
    first: "array[float]" = field(default_factory=lambda: array("d"))
    gaps: "array[float]" = field(default_factory=lambda: array("d"))
    spans: list[Span] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)


class Load(Protocol):
    """What a client needs of the load that it is part of."""

    record: Record
    active: int
    events_expected: int | None

    @property
    def issuing(self) -> bool:
        """Whether there is more to ask."""

    def next_request(self) -> bytes | None:
        """The bytes to send now; None when there is no more to ask."""

    def reconnect(self, client: "Client") -> None:
        """Open this client's connection again."""

    def idle(self, client: "Client") -> None:
        """This client has nothing in flight and will not ask again."""


class Client(asyncio.Protocol):
    """One slot of the offered concurrency."""

    def __init__(self, load: Load, target: tuple[str, int]) -> None:
        self.load, self.target = load, target
        self.transport: asyncio.Transport | None = None
        self.in_flight = False
        # When its connection was begun, where that is part of the first request's time.
        self.began: float | None = None
        self._started = self._first = self._last = 0.0
        self._counter = EventCounter()
        self._size = 0
        self._new = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are asyncio.Transport in all but the type.
        self.transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpResponseParser(self)
        self.load.record.connects += 1
        self.ask()

    def ask(self) -> None:
        """Send the request, unless the load is over."""
        request = None if self.transport is None else self.load.next_request()
        if request is None or self.transport is None:
            self.load.idle(self)
            return
        self._counter = EventCounter()
        self._size = 0
        self.in_flight = True
        self.load.active += 1
        self._last = 0.0
        self._started, self.began = self.began or time.perf_counter(), None
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._new = 0
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.fail(f"malformed response: {error}")
            self.close()
        if self._new:
            self.load.record.reads += 1

    def on_body(self, data: bytes) -> None:
        self._size += len(data)
        if self.load.events_expected is not None and (new := self._counter.feed(data)):
            self._arrived(new)

    def _arrived(self, events: int) -> None:
        record = self.load.record
        record.events += events
        if self._new:  # same read: one arrival, one gap
            return
        self._new = events
        now = time.perf_counter()
        if self._last:
            record.gaps.append(now - self._last)
        else:
            record.first.append(now - self._started)
            self._first = now
        self._last = now

    def on_message_complete(self) -> None:
        if not self.in_flight:
            return
        wrong = self._wrong()
        if wrong:
            self.fail(wrong)
            self.close()  # and come back later: a failing router is not to be asked in a hot loop
            return
        self._succeed()
        if self._parser.should_keep_alive():
            self.ask()
        else:
            self.close()

    def _wrong(self) -> str | None:
        status = self._parser.get_status_code()
        if status != 200:
            return f"status {status}"
        expected = self.load.events_expected
        if expected is None:
            return None if self._size else "empty body"
        if self._counter.errors:
            return "error event"
        if self._counter.events != expected or not self._counter.done:
            return f"{self._counter.events} of {expected} events, done: {self._counter.done}"
        return None

    def _succeed(self) -> None:
        self._finish()
        record, now = self.load.record, time.perf_counter()
        record.requests += 1
        if self.load.events_expected is None:
            self._first = now
            record.first.append(now - self._started)
        record.spans.append(Span(self._started, self._first, now))

    def fail(self, reason: str) -> None:
        """Count a failure of the request in flight."""
        if self.in_flight:
            self._finish()
            self.load.record.failures[reason] += 1

    def leave(self) -> None:
        """Give up on the answer in flight: neither a success nor a failure."""
        if self.in_flight:
            self._finish()

    def _finish(self) -> None:
        self.in_flight = False
        self.load.active -= 1

    def close(self) -> None:
        """Drop the connection."""
        if self.transport is not None:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.fail("connection lost")
        if self.load.issuing:
            self.load.reconnect(self)
        else:
            self.load.idle(self)
