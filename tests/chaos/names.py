"""Host names of engines and their addresses: a file with which a router resolves them.

All have one name, which the system knows too (for libraries in C), and differ by port.
"""

import socket
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Final

import orjson
import uvloop

__all__ = ["ELSEWHERE", "HERE", "NAME", "Names", "resolver"]

NAME: Final = "localhost"
HERE: Final = "127.0.0.1"
ELSEWHERE: Final = "127.0.0.2"
"""Another address of this host."""


class Names:
    """The file, written. A port that is not in it leads to `HERE`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "names"
        self._addresses: dict[str, list[str]] = {}
        self._write()

    def put(self, port: int, addresses: Iterable[str]) -> None:
        """From now on the name leads there, for this port."""
        self._addresses[str(port)] = list(addresses)
        self._write()

    def _write(self) -> None:
        new = self.path.with_suffix(".new")
        new.write_bytes(orjson.dumps(self._addresses))
        new.replace(self.path)


def resolver(path: Path) -> Callable[..., Awaitable[Any]]:
    """An event loop's `getaddrinfo` that reads the file each time it is asked for the name."""
    by_system = uvloop.Loop.getaddrinfo

    async def getaddrinfo(
        loop: uvloop.Loop, host: str | None, port: int, **options: Any
    ) -> list[tuple[Any, ...]]:
        if host != NAME:
            return await by_system(loop, host, port, **options)
        found = _read(path).get(str(port), [HERE])
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in found]

    return getaddrinfo


def _read(path: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = orjson.loads(path.read_bytes())
    return found
