"""Heads that clients send again and again: parsed and judged once.

The requests of one client differ in their bodies, and their heads in Content-Length only. Where the
parser has accepted a head with a body, the same bytes with another length have the same meaning.
"""

import re
from typing import Final

from router.net.client_request import RequestHead

__all__ = ["NOTHING", "KnownHeads", "split"]

MAX_HEADS: Final = 512
"""Clients with heads of their own; with MAX_BYTES at most some megabytes."""

MAX_BYTES: Final = 2048
"""Of a head that is kept; those of SDKs have some 500."""

NOTHING: Final = (b"", b"")

# More digits may be too large a number for the parser.
_LENGTH: Final = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: (\d{1,15})\r\n")


class KnownHeads:
    """Heads by their bytes without the digits of the length."""

    __slots__ = ("_heads",)

    def __init__(self) -> None:
        self._heads: dict[bytes, RequestHead] = {}

    def find(self, key: bytes) -> RequestHead | None:
        """The head that was added with this key."""
        return self._heads.get(key)

    def add(self, key: bytes, head: RequestHead) -> None:
        """Keep a head. When there are too many, all go: those in use soon come back."""
        if len(key) > MAX_BYTES:
            return
        if len(self._heads) >= MAX_HEADS:
            self._heads.clear()
        self._heads[key] = head


def split(data: bytes) -> tuple[bytes, bytes]:
    """The key of a head and its body, if `data` is one whole request with a body; else nothing."""
    end = data.find(b"\r\n\r\n") + 4
    found = _LENGTH.search(data, 0, end)
    if found is None:
        return NOTHING
    start, stop = found.span(1)
    length = int(data[start:stop])
    if not length or end + length != len(data):
        return NOTHING
    return data[:start] + data[stop:end], data[end:]
