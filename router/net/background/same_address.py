"""Detects engine URLs with the same address, which may be one engine that was configured twice.

http://127.0.0.1:8000 and http://localhost:8000 are different URLs of one engine. It would count as
two: it would get twice its share of the requests, and each URL would show half of its load.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from router.core.urls import Origin, origin
from router.net.addresses import Resolve, resolve_now

__all__ = ["SameAddress", "same_addresses"]


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
    ignored."""
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
