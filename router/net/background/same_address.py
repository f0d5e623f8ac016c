"""Engine URLs that stand for one address: perhaps an engine that was given twice.

http://127.0.0.1:8000 and http://localhost:8000 differ as text, and are one engine. It would count
as two: twice its share of the requests, and each name with half of its load.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from router.core.urls import Origin, origin
from router.net.addresses import Resolve, resolve_now

__all__ = ["Twins", "twins"]


class Twins(NamedTuple):
    """Two URLs that lead to the same address, port and path."""

    first: str
    second: str
    address: str

    @property
    def warning(self) -> str:
        """What it means, and what to do."""
        return (
            f"{self.first} and {self.second} both lead to {self.address}: if that is one engine, "
            "give it once, or it gets twice its share of the requests"
        )


async def twins(urls: Sequence[str], resolve: Resolve | None = None) -> list[Twins]:
    """Each URL that leads where one before it does, with that one. Names that do not resolve are
    in none."""
    resolved = await asyncio.gather(
        *(_addresses(origin(url), resolve or resolve_now) for url in urls)
    )
    first_at: dict[str, str] = {}
    found = []
    for url, addresses in zip(urls, resolved, strict=True):
        for address in sorted(addresses):
            first = first_at.setdefault(address, url)
            if first != url:
                found.append(Twins(first, url, address))
                break
    return found


async def _addresses(place: Origin, resolve: Resolve) -> set[str]:
    """Where it leads. Behind one address, paths tell engines apart."""
    try:
        hosts = await resolve(place.host, place.port)
    except (OSError, UnicodeError):
        return set()
    port = f"{place.port}{place.prefix}"
    return {f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host in hosts}
