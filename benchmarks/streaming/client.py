"""One connection of a load generator: sends a request, reads the answer, then the next request.

Knows HTTP/1.1 (httptools) and streams of events. Subclasses decide which events count, and which
answer is a success: `compare` counts all events, the gate looks for content.
"""

import asyncio
import errno
import os
import re
import socket
import time
from array import array
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import Protocol, cast

import httptools

from benchmarks.streaming.sse import EventReader

# What is kept of an answer that is not 200, to name its error.
BODY_LIMIT = 8192
# Response headers that name the worker: this router's and those of inference gateways.
WORKER = (b"x-pd-router-endpoint", b"x-gateway-destination-endpoint-served")
# Seconds in which a close that the server had begun before it read our request reaches us: half a
# round trip. A server that closes later has received the request and dropped it.
CROSSED_S = 0.05
# Errors of the client's own machine: no file descriptors or no local ports left.
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL)
NUMBERS = re.compile(r"\[Errno (\d+)\]")
# Workers that it waited for before, by a header of this router: a comma list.
LEFT = b"x-pd-router-left"


@dataclass(slots=True)
class Seen:
    """Measurements of one request. Times are of time.monotonic.

    `sent` is when it was meant to be sent, where that was arranged: it was then `late` by so many
    seconds. It is given up by the client after `give_up` seconds: `cancelled`. `events` collects
    what comes, for those who want to read it: then `text` is what was said. `left` are workers
    that it waited for before `worker` answered. It was `resent` where the connection was closed
    just when it was written.
    """

    number: int
    prompt: int
    sent: float
    written: float | None = None
    first: float | None = None
    last: float | None = None
    ended: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    status: int | None = None
    error: str | None = None
    worker: str | None = None
    left: tuple[str, ...] = ()
    gaps: "array[float]" = field(default_factory=lambda: array("d"))
    turn: int = 0
    late: float | None = None
    give_up: float | None = None
    cancelled: bool = False
    resent: bool = False
    events: list[bytes] | None = None
    text: str | None = None

    @property
    def chunks(self) -> int:
        """Counted chunks so far."""
        return 0 if self.first is None else len(self.gaps) + 1

    def arrival(self, now: float) -> None:
        """Record the arrival of a counted chunk."""
        if self.last is None:
            self.first = now
        else:
            self.gaps.append(now - self.last)
        self.last = now


class Crowd(Protocol):
    """What a stream needs from its load."""

    timeout: float
    """Seconds until a request has failed; infinity for no limit."""

    def next_request(self) -> tuple[Seen, bytes] | None:
        """The next request; None at the end."""

    def arrived(self, seen: Seen, count: int) -> None:
        """Count the chunks of one read."""

    def ended(self, seen: Seen) -> None:
        """Record the outcome of a request."""

    def idle(self, stream: "Stream") -> None:
        """The stream has sent its last request."""

    def connect(self, stream: "Stream") -> None:
        """Open the stream's connection; call `fail` if that is impossible."""


class Stream(asyncio.Protocol):
    """One slot of the offered concurrency. Every request that it takes ends exactly once, unless
    the stream is stopped."""

    def __init__(self, crowd: Crowd, loop: asyncio.AbstractEventLoop) -> None:
        self._crowd, self._loop = crowd, loop
        self._transport: asyncio.Transport | None = None
        self._seen: Seen | None = None
        self._request = b""
        self._timer: asyncio.TimerHandle | None = None
        self._fresh = True
        self._stopped = False
        self._new_answer()

    def _new_answer(self) -> None:
        self._events, self._body = EventReader(), b""
        self._done = self._heard = self._is_new_read = False

    def ask(self) -> None:
        """Take the next request and send it, on a new connection if there is none."""
        taken = None if self._stopped else self._crowd.next_request()
        if taken is None:
            self._crowd.idle(self)
            return
        self._seen, self._request = taken
        self._new_answer()
        give_up, timeout = self._seen.give_up, self._crowd.timeout
        if give_up is not None and give_up < timeout:
            self._timer = self._loop.call_later(give_up, self._given_up)
        elif timeout < float("inf"):
            self._timer = self._loop.call_later(timeout, self._timed_out)
        if self._transport is None:
            self._crowd.connect(self)
        else:
            self._write()

    def _write(self) -> None:
        if self._seen is not None and self._transport is not None:
            self._transport.write(self._request)
            self._seen.written = time.monotonic()

    def stop(self) -> None:
        """Abandon the request in flight (it counts neither as answered nor as failed), stop."""
        self._stopped = True
        self._seen = None
        self._cancel_timer()
        self.close()

    def close(self) -> None:
        """Drop the connection."""
        if self._transport is not None:
            transport, self._transport = self._transport, None
            transport.abort()

    def _timed_out(self) -> None:
        self.fail(f"timed out after {self._crowd.timeout:g} s")

    def _given_up(self) -> None:
        """Cancel the request, like a user that closes the page: neither a success nor a failure."""
        if self._seen is not None:
            self._seen.cancelled = True
            self._finish(keep=False)

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are asyncio.Transport in all but the type.
        self._transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpResponseParser(self)
        self._fresh = True
        if self._stopped or self._seen is None:  # timed out while it connected
            self.close()
        else:
            self._write()

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        self._heard = self._is_new_read = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.fail(f"malformed answer: {type(error).__name__}")
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is None:  # closed by us
            return
        self._transport = None
        if (seen := self._seen) is None:
            return
        if not self._fresh and not self._heard and _crossed(seen):
            # The server closed an idle connection while we wrote: it has not seen the request.
            seen.resent = True
            self._crowd.connect(self)
        elif self._done and exc is None:
            self.on_message_complete()  # HTTP/1.0: the end of the connection is the end
        else:
            self.fail("connection lost")

    # httptools' callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._seen is None:
            return
        if (name := name.lower()) in WORKER:
            self._seen.worker = value.decode("latin-1")
        elif name == LEFT:
            self._seen.left = listed(value)

    def on_headers_complete(self) -> None:
        if self._seen is not None:
            self._seen.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        seen = self._seen
        if seen is None:
            return
        if seen.status != 200:
            self._body = (self._body + data)[:BODY_LIMIT]
        elif events := self._events.feed(data):
            self._read(seen, events, time.monotonic())

    def on_message_complete(self) -> None:
        seen = self._seen
        if seen is None:
            return
        keep = self._parser.should_keep_alive()
        if (wrong := self._wrong(seen)) is not None:
            self.fail(wrong, keep=keep)
        else:
            self._finish(keep=keep)

    # For subclasses

    def _read(self, seen: Seen, events: list[bytes], now: float) -> None:
        """Process the events of one read."""
        raise NotImplementedError

    def _wrong(self, seen: Seen) -> str | None:
        """What is wrong with an answer that is complete; None for a good one."""
        raise NotImplementedError

    def _again(self, seen: Seen) -> None:
        """Continue after a request has ended."""
        # By the loop: an endpoint that refuses each request at once would cause a recursion.
        self._loop.call_soon(self.ask)

    def fail(self, reason: str, *, keep: bool = False) -> None:
        """The request in flight has failed; `keep` its connection."""
        if self._seen is None:
            return
        self._seen.error = self._seen.error or reason
        self._finish(keep=keep)

    def _finish(self, *, keep: bool) -> None:
        seen, self._seen = self._seen, None
        assert seen is not None
        self._cancel_timer()
        seen.ended = time.monotonic()
        self._fresh = False
        if not keep:
            self.close()
        self._crowd.ended(seen)
        self._again(seen)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _crossed(seen: Seen) -> bool:
    return seen.written is not None and time.monotonic() - seen.written <= CROSSED_S


def listed(value: bytes) -> tuple[str, ...]:
    """The entries of a comma-separated list."""
    return tuple(each.strip() for each in value.decode("latin-1").split(","))


async def open_connection(
    stream: Stream, host: str, port: int, tls: SSLContext | None = None
) -> None:
    """Connect a stream, or fail it with the reason."""
    loop = asyncio.get_running_loop()
    try:
        await loop.create_connection(lambda: stream, host, port, ssl=tls)
    except OSError as error:
        stream.fail(f"cannot connect: {_named(await _telling(error, host, port))}")


async def _telling(error: OSError, host: str, port: int) -> OSError:
    """If a name has several addresses that fail in different ways, the loop joins the errors in one
    text: the error that names this machine's fault, else the first."""
    numbers = [] if error.errno else [int(each) for each in NUMBERS.findall(str(error))]
    if errno.EADDRNOTAVAIL in numbers and not await _has_routes(host, port):
        numbers = [number for number in numbers if number != errno.EADDRNOTAVAIL]
    for number in (*EXHAUSTED, *numbers):
        if number in numbers:
            return OSError(number, os.strerror(number))
    return error


async def _has_routes(host: str, port: int) -> bool:
    """Whether this machine has addresses from which it can reach all of the name's: a machine
    without IPv6 gets EADDRNOTAVAIL for ::1, too. Connecting a UDP socket sends nothing."""
    loop = asyncio.get_running_loop()
    try:
        for family, _, _, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM):
            with socket.socket(family, socket.SOCK_DGRAM) as found:
                found.connect(address)
    except OSError:
        return False
    return True


def _named(error: OSError) -> str:
    """By its class, where it has one of its own; else by its number. (TLS errors have numbers too,
    of another kind.)"""
    name = type(error).__name__
    return errno.errorcode.get(error.errno or 0, name) if type(error) is OSError else name
