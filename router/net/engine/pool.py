"""Pools of keep-alive connections, one for each engine. The most recently used connection is reused
first, and idle ones are closed after a time-out."""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import zip_longest
from typing import ClassVar, Final

from router.core.judge.member import Member
from router.core.urls import Origin
from router.core.values import Endpoint, Failure, FailureKind
from router.net.addresses import Addresses
from router.net.engine.answer import AnswerHead
from router.net.engine.dial import Dial
from router.net.engine.engine_connection import CountingConnection, EngineConnection
from router.net.engine.engine_session import CRASHED, REFUSED, trouble_of
from router.net.exhaustion import is_exhaustion, remedy
from router.net.known_heads import KnownHeads
from router.net.limits.read_limiter import ReadLimiter
from router.net.limits.read_rotation import ReadRotation
from router.net.watched_files import TLSFiles

__all__ = ["HANDSHAKE_STARTS", "RANK_HEADER", "EnginePool", "EnginePools"]

log = logging.getLogger(__name__)

MAX_HEADS = 32
"""Most response heads that are cached per engine: their Date header makes a new one each second."""

UNLIMITED = 1 << 62
"""A read limit in bytes that is never reached, for commands that query one engine."""

RANK_HEADER = b"x-data-parallel-rank"

UNREPLAYABLE_SECONDS = 1.0
"""Longest idle time in seconds of a connection for a request that must not be sent twice: a fifth
of vLLM's keep-alive time-out."""


COMPLAINT_SECONDS = 1.0
"""Least seconds between two log lines about exhausted file descriptors or ports."""

HANDSHAKE_STARTS: Final = 8
"""A TLS handshake takes 0.5 ms in later turns of the event loop, starting a request 60 us."""

UNREACHABLE = "The engine cannot be reached."

Dialled = Callable[[EngineConnection | Failure], None]


class EnginePool:
    """Connections to one engine. Any number may be in use; at most `max_idle` are kept idle.

    `idle_seconds` must be less than the engine's keep-alive time-out (uvicorn: 5 s), or requests
    may be sent on a connection that the engine is closing.
    """

    _complains_at: ClassVar[float] = -math.inf
    """When this process may log exhausted file descriptors or ports again, on the monotonic
    clock."""

    def __init__(
        self,
        origin: Origin,
        *,
        connect_seconds: float,
        idle_seconds: float,
        max_idle: int,
        tls: TLSFiles | None,
        read_limiter: ReadLimiter | None = None,
        read_rotation: ReadRotation | None = None,
    ) -> None:
        self.origin = origin
        self.read_limiter = read_limiter or ReadLimiter(UNLIMITED)
        self._read_rotation = read_rotation or ReadRotation(list)
        """Shared by all connections to engines."""
        self.authority = origin.authority.encode()
        """The value of the Host header."""
        self.rank_line = b""
        """The header line that pins a request to its data-parallel rank; empty without ranks."""
        self.prefix = origin.prefix.encode("latin-1")
        """The path prefix of the engine's URL."""
        self._addresses = Addresses(origin.host, origin.port)
        self._connect_seconds = connect_seconds
        self._idle_seconds = idle_seconds
        self._max_idle = max_idle
        self._tls = tls if origin.tls else None
        self.connect_cost: Final = 0 if self._tls is None else HANDSHAKE_STARTS
        """As how many starts of a request opening a connection counts, besides the request's."""
        self.known_heads: KnownHeads[AnswerHead] = KnownHeads(MAX_HEADS)
        self._idle: deque[EngineConnection] = deque()
        self._open: set[EngineConnection] = set()
        self._reaper: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<EnginePool {self.origin.url} [{self.open} open, {self.idle} idle]>"

    def configure(self, *, connect_seconds: float, idle_seconds: float, max_idle: int) -> None:
        """Set these limits."""
        self._connect_seconds = connect_seconds
        self._idle_seconds = idle_seconds
        self._max_idle = max_idle

    def pin(self, place: int | None) -> None:
        """Pin requests to the data-parallel rank in this place; None: to none."""
        self.rank_line = b"" if place is None else b"%b: %d\r\n" % (RANK_HEADER, place)

    @property
    def open(self) -> int:
        """Number of open connections, including idle ones."""
        return len(self._open)

    @property
    def idle(self) -> int:
        """Number of idle connections."""
        return len(self._idle)

    def answering(self) -> list[EngineConnection]:
        """The connections that are in the middle of an answer, for the read rotation. None with
        TLS: uvloop reads from those even if they are paused, and the end of an answer is lost if
        the engine closes the connection meanwhile."""
        return [] if self._tls else [one for one in self._open if one.is_answering]

    def take(self, *, replay: bool) -> EngineConnection | None:
        """Take an idle connection, or None. `replay`: whether the request may be sent twice.

        If it may not, only a connection that has been idle for less than UNREPLAYABLE_SECONDS is
        taken: no engine closes it so soon.
        """
        seconds = self._idle_seconds if replay else min(self._idle_seconds, UNREPLAYABLE_SECONDS)
        oldest = time.monotonic() - seconds
        if not replay and (not self._idle or self._idle[-1].idle_since <= oldest):
            return None
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_since > oldest and not connection.is_closing():
                return connection
            connection.abort()
        return None

    def dial(self, loop: asyncio.AbstractEventLoop, then: Dialled) -> Dial:
        """Open a connection. `then` gets it in one of the next turns of the event loop, or the
        failure if that is not possible."""
        dial = Dial(loop, self._open.add, then)
        tried: list[str] = []
        seconds = self._connect_seconds
        dial.begin(self._connect(dial, tried), seconds, partial(self._timed_out, tried, seconds))
        return dial

    async def connect(self) -> EngineConnection | Failure:
        """Open a connection. Returns a failure if that is not possible."""
        loop = asyncio.get_running_loop()
        result: asyncio.Future[EngineConnection | Failure] = loop.create_future()

        def then(made: EngineConnection | Failure) -> None:
            if not result.done():
                result.set_result(made)
            elif isinstance(made, EngineConnection):
                made.abort()

        dial = self.dial(loop, then)
        try:
            return await result
        except asyncio.CancelledError:
            dial.cancel()
            if not result.cancelled():  # it came just before
                then(result.result())
            raise

    def _timed_out(self, tried: list[str], seconds: float) -> Failure:
        if tried:
            self._addresses.forget(tried[-1])
        text = f"The engine did not accept a connection in {seconds:g} s."
        cause = f"no connection in {seconds:g} s: check host and network"
        return Failure(FailureKind.REFUSED, text, cause)

    @staticmethod
    def _exhausted(error: OSError) -> Failure:
        now = time.monotonic()
        if now >= EnginePool._complains_at:
            EnginePool._complains_at = now + COMPLAINT_SECONDS
            log.error("cannot connect to engines: %s; %s", error.strerror, remedy(error))
        return Failure(FailureKind.EXHAUSTED, "The router cannot open a connection now.")

    async def _connect(self, dial: Dial, tried: list[str]) -> Failure | None:
        """Try each address, and append it to `tried` first. Returns why none could be connected
        to."""
        try:
            await self._connect_to_any(dial, tried)
        except (OSError, UnicodeError) as error:  # UnicodeError: not a valid host name
            if is_exhaustion(error):
                return self._exhausted(error)
            trouble = trouble_of(error)  # requests are only sent to engines that were up
            cause = CRASHED if trouble.health == REFUSED else trouble.advice or ""
            return Failure(FailureKind.REFUSED, UNREACHABLE, cause)
        except Exception:
            log.exception("connecting to %s failed inside the router", self.origin.url)
            return Failure(FailureKind.REFUSED, UNREACHABLE)
        return None

    async def _connect_to_any(self, dial: Dial, tried: list[str]) -> None:
        """Raises OSError or UnicodeError."""
        is_cached = self._addresses.is_cached
        try:
            await self._connect_to_one_of(await self._addresses.get(), dial, tried)
        except OSError as error:
            if not is_cached or is_exhaustion(error):
                raise
            # The cached addresses may be outdated if the engine has moved.
            found = [each for each in await self._addresses.get() if each not in tried]
            if not found:
                raise
            await self._connect_to_one_of(found, dial, tried)

    async def _connect_to_one_of(self, addresses: list[str], dial: Dial, tried: list[str]) -> None:
        failure = OSError("it has no address")
        for address in addresses:
            tried.append(address)
            try:
                await self._connect_to(address, dial)
            except OSError as error:
                if is_exhaustion(error):
                    raise
                self._addresses.forget(address)
                failure = error
            else:
                return
        raise failure

    async def _connect_to(self, address: str, dial: Dial) -> None:
        origin = self.origin
        await dial.loop.create_connection(
            partial(self._connection, dial),  # type: ignore[type-var]
            address,
            origin.port,
            ssl=None if self._tls is None else self._tls.context,
            # The certificate is checked against the host name, not the address.
            server_hostname=None if self._tls is None else origin.host,
        )

    def _connection(self, dial: Dial) -> EngineConnection:
        if self._tls is None and self._read_rotation.takes_sample():
            return CountingConnection(self, dial.made, self._read_rotation)
        return EngineConnection(self, dial.made)

    def put(self, connection: EngineConnection) -> None:
        """Keep a connection for reuse."""
        if len(self._idle) >= self._max_idle:
            connection.abort()
            return
        connection.idle_since = time.monotonic()
        self._idle.append(connection)
        if self._reaper is None:
            loop = asyncio.get_running_loop()
            self._reaper = loop.call_later(self._idle_seconds, self._reap)

    def forget(self, connection: EngineConnection) -> None:
        """Remove a connection that was closed."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def retire(self) -> None:
        """Close idle connections and keep none from now on, because the engine has left. Requests
        in flight continue."""
        self._max_idle = 0
        self._stop_reaping()
        while self._idle:
            self._idle.popleft().abort()

    def close(self) -> None:
        """Close all connections immediately."""
        self._addresses.close()
        self._stop_reaping()
        for connection in list(self._open):
            connection.abort()
        self._idle.clear()

    def _stop_reaping(self) -> None:
        if self._reaper is not None:
            self._reaper.cancel()
            self._reaper = None

    def _reap(self) -> None:
        """Close connections that were idle for too long; the list is ordered by idle time."""
        self._reaper = None
        now = time.monotonic()
        while self._idle and self._idle[0].idle_since + self._idle_seconds <= now:
            self._idle.popleft().abort()
        if self._idle:
            delay = self._idle[0].idle_since + self._idle_seconds - now
            self._reaper = asyncio.get_running_loop().call_later(delay, self._reap)


class EnginePools:
    """One pool per engine, created by `make`. `by_endpoint` stays the same object, because requests
    hold a reference to it."""

    def __init__(self, make: Callable[[Endpoint], EnginePool]) -> None:
        self.by_endpoint: dict[Endpoint, EnginePool] = {}
        self._make = make
        self._members: dict[Endpoint, Member] = {}
        self._retired: list[EnginePool] = []
        """Those of engines that have left, as long as requests are in flight on them."""

    def follow(self, members: Iterable[Member]) -> None:
        """Set the engines of the fleet. The pools of engines that have left are retired, and
        requests in flight on them continue."""
        current = {member.endpoint: member for member in members}
        for endpoint, member in self._members.items():
            if current.get(endpoint) is not member:
                pool = self.by_endpoint.pop(endpoint)
                pool.retire()
                self._retired.append(pool)
        self._retired = [pool for pool in self._retired if pool.open]
        for endpoint, member in current.items():
            if endpoint not in self.by_endpoint:
                self.by_endpoint[endpoint] = self._make(endpoint)
            self.by_endpoint[endpoint].pin(member.entry.place)
        self._members = current

    def configure(self, *, connect_seconds: float, idle_seconds: float, max_idle: int) -> None:
        """Set these limits for all pools. `make` sets those of engines that join."""
        for pool in self.by_endpoint.values():
            pool.configure(
                connect_seconds=connect_seconds, idle_seconds=idle_seconds, max_idle=max_idle
            )

    def answering(self) -> list[EngineConnection]:
        """The connections that are in the middle of an answer, also those to engines that have
        left. Engines alternate, so that each slice of the read rotation has some of every engine:
        their speeds are compared four times a second."""
        pools = (*self.by_endpoint.values(), *self._retired)
        rows = zip_longest(*[pool.answering() for pool in pools])
        return [one for row in rows for one in row if one is not None]

    def close(self) -> None:
        """Close all connections immediately."""
        for pool in (*self.by_endpoint.values(), *self._retired):
            pool.close()
