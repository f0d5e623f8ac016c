"""The addresses of engines' host names: cached, and compared.

Without a cache, each new connection of a burst would take a resolver thread and a query to a server
that may be slow or down. Answers are kept for some seconds and renewed in the background; if the
resolver fails, old ones stay in use. Health probes look names up every time.
"""

import asyncio
import ipaddress
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from router.core.urls import Origin, origin

__all__ = ["Addresses", "Resolve", "SameAddress", "resolve_now", "same_addresses"]

FRESH_SECONDS = 5.0
"""An answer is used for this long without a new lookup: the time-to-live of services in Kubernetes
(CoreDNS: 5 s by default)."""

STALE_SECONDS = 30.0
"""Older answers are used only if the lookup fails: the address may be another host's by now."""

LOOKUP_TIMEOUT_SECONDS = 1.0
"""Longest wait for an answer that replaces a stale one."""

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Resolves a host name to addresses, best first. Raises OSError, or UnicodeError for an invalid
name."""


class Addresses:
    """A cache of the addresses of one host, best first. `clock` is monotonic and in seconds."""

    def __init__(
        self,
        host: str,
        port: int,
        resolve: Resolve | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host = host
        self._port = port
        self._resolve = resolve or resolve_now
        self._clock = clock
        self._is_literal = _is_literal(host)
        self._known: list[str] = [host] if self._is_literal else []
        self._asked_at = 0.0
        """When `_known` was looked up."""
        self._lookup: asyncio.Task[list[str] | Exception] | None = None

    async def get(self) -> list[str]:
        """The addresses, in order of preference. Raises what `resolve` raises if none is known."""
        if self._is_literal:
            return [self._host]
        age = self._clock() - self._asked_at
        if self._known and age <= FRESH_SECONDS:
            return self._known
        lookup = self._look_up()
        if self._known and age <= STALE_SECONDS:
            return self._known
        # The lookup is shared: cancelling one waiter must not cancel it.
        await asyncio.wait([lookup], timeout=LOOKUP_TIMEOUT_SECONDS if self._known else None)
        if self._known:
            return self._known
        found = lookup.result()
        if isinstance(found, Exception):
            raise found
        return found

    @property
    def is_cached(self) -> bool:
        """Whether `get` may return an earlier answer."""
        return bool(self._known) and not self._is_literal

    def forget(self, address: str) -> None:
        """Do not use an address that refuses connections until the next lookup."""
        if not self._is_literal:
            self._known = [each for each in self._known if each != address]

    def close(self) -> None:
        """Give up a lookup that is under way."""
        if self._lookup is not None:
            self._lookup.cancel()
            self._lookup = None

    def _look_up(self) -> "asyncio.Task[list[str] | Exception]":
        """The lookup that is under way, or a new one."""
        if self._lookup is None:
            self._lookup = asyncio.get_running_loop().create_task(self._find(), name="DNS lookup")
        return self._lookup

    async def _find(self) -> list[str] | Exception:
        """Look up; errors are returned, because the task may have no waiter to raise in."""
        try:
            found = await self._resolve(self._host, self._port)
        except (OSError, UnicodeError) as error:
            return error
        else:
            self._known, self._asked_at = found, self._clock()
            return found
        finally:
            self._lookup = None


async def resolve_now(host: str, port: int) -> list[str]:
    """Ask the system's resolver. Raises as `Resolve` says."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class SameAddress(NamedTuple):
    """Two URLs with the same address, port and path."""

    first: str
    second: str
    address: str

    @property
    def warning(self) -> str:
        """A warning for operators, with advice."""
        return (
            f"{self.first} and {self.second} both lead to {self.address}: if that is one engine, "
            "give it once, or it gets twice its share of the requests"
        )


async def same_addresses(urls: Sequence[str], resolve: Resolve | None = None) -> list[SameAddress]:
    """Each URL that has the address of an earlier one, with that one. Names that do not resolve are
    ignored.

    http://127.0.0.1:8000 and http://localhost:8000 are different URLs of one engine. It would count
    as two: it would get twice its share of the requests, and each URL would show half of its load.
    """
    resolved = await asyncio.gather(
        *(_addresses(origin(url), resolve or resolve_now) for url in urls)
    )
    first_at: dict[str, str] = {}
    found = []
    for url, addresses in zip(urls, resolved, strict=True):
        for address in sorted(addresses):
            first = first_at.setdefault(address, url)
            if first != url:
                found.append(SameAddress(first, url, address))
                break
    return found


async def _addresses(place: Origin, resolve: Resolve) -> set[str]:
    """The addresses of a URL, including port and path: with different paths they may be different
    engines."""
    try:
        hosts = await resolve(place.host, place.port)
    except (OSError, UnicodeError):
        return set()
    port = f"{place.port}{place.prefix}"
    return {f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host in hosts}
