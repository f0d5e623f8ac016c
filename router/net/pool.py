"""Keep-alive connections to one engine: the most recently used first, none kept too long."""

import asyncio
import ssl
import time
from collections import deque

from router.core.urls import Origin
from router.core.values import Failure, FailureKind
from router.net.engine_connection import EngineConnection

__all__ = ["EnginePool"]


UNREPLAYABLE_SECONDS = 1.0
"""A fifth of vLLM's keep-alive limit."""


class EnginePool:
    """Connections to one engine. Any number may be in use; at most `max_idle` wait for reuse.

    `idle_seconds` must be below the engine's own limit (uvicorn: 5 s), or a request is sent into
    a connection that the engine is closing.
    """

    def __init__(
        self,
        origin: Origin,
        *,
        connect_seconds: float,
        idle_seconds: float,
        max_idle: int,
        tls: ssl.SSLContext | None,
    ) -> None:
        self.origin = origin
        self.authority = origin.authority.encode()
        """The value of the Host header."""
        self.prefix = origin.prefix.encode("latin-1")
        """What stands before every path."""
        self._connect_seconds = connect_seconds
        self._idle_seconds = idle_seconds
        self._max_idle = max_idle
        self._tls = tls if origin.tls else None
        self._idle: deque[EngineConnection] = deque()
        self._open: set[EngineConnection] = set()
        self._reaper: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<EnginePool {self.origin.url} [{self.open} open, {self.idle} idle]>"

    @property
    def open(self) -> int:
        """Connections that exist, idle ones included."""
        return len(self._open)

    @property
    def idle(self) -> int:
        """Connections that wait for reuse."""
        return len(self._idle)

    def take(self, *, replay: bool) -> EngineConnection | None:
        """An idle connection that is fresh enough, or None.

        For a request that may not be sent twice only a connection that was in use a moment ago is
        fresh enough: no engine closes one so soon.
        """
        seconds = self._idle_seconds if replay else min(self._idle_seconds, UNREPLAYABLE_SECONDS)
        oldest = time.monotonic() - seconds
        if not replay and (not self._idle or self._idle[-1].idle_since <= oldest):
            return None
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_since > oldest and not connection.is_closing:
                return connection
            connection.abort()
        return None

    async def connect(self) -> EngineConnection | Failure:
        """A new connection, or why there is none."""
        loop = asyncio.get_running_loop()
        name = self.origin.url
        try:
            async with asyncio.timeout(self._connect_seconds):
                _, connection = await loop.create_connection(
                    lambda: EngineConnection(self, name),
                    self.origin.host,
                    self.origin.port,
                    ssl=self._tls,
                )
        except TimeoutError:
            text = f"The engine at {name} did not accept a connection in {self._connect_seconds} s."
            return Failure(FailureKind.REFUSED, text)
        except (OSError, UnicodeError) as error:  # UnicodeError: what is no host name
            return Failure(FailureKind.REFUSED, f"The engine at {name} cannot be reached: {error}.")
        # Counted only now: uvloop does not tell a protocol of the end of its transport when the
        # task that connects is cancelled.
        if not connection.is_closing:
            self._open.add(connection)
        return connection

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
        """The connection is closed."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        """Close everything at once."""
        if self._reaper is not None:
            self._reaper.cancel()
            self._reaper = None
        for connection in list(self._open):
            connection.abort()
        self._idle.clear()

    def _reap(self) -> None:
        """Close what has waited too long; idle connections are ordered by age."""
        self._reaper = None
        now = time.monotonic()
        while self._idle and self._idle[0].idle_since + self._idle_seconds <= now:
            self._idle.popleft().abort()
        if self._idle:
            delay = self._idle[0].idle_since + self._idle_seconds - now
            self._reaper = asyncio.get_running_loop().call_later(delay, self._reap)
