"""Heads that come again and again: parsed and judged once.

The requests of one client differ in their bodies, and their heads in Content-Length only; so do the
answers of one engine. Where the parser has accepted a head with a body, the same bytes with another
length have the same meaning.
"""

from collections.abc import Callable
from typing import Final, Generic, TypeVar

__all__ = ["NOTHING", "Key", "KnownHeads", "split"]

MAX_BYTES: Final = 2048
"""Of a head that is kept; those of SDKs have some 500."""

LENGTH_NAMES: Final = (b"\r\ncontent-l", b"\r\nContent-L")
"""What stands before `ength: ` in the line that states the length."""

Key = tuple[bytes, bytes]
"""What stands in a head before the digits of the length, and behind them; the whole of one that
states none, and nothing."""

NOTHING: Final = ((b"", b""), b"")

Head = TypeVar("Head")


class KnownHeads(Generic[Head]):
    """Up to `most` heads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._heads: dict[Key, Head] = {}
        self.find: Callable[[Key], Head | None] = self._heads.get
        """The head that was added with a key."""

    def add(self, key: Key, head: Head) -> None:
        """Keep a head. When there are too many, all go: those in use soon come back."""
        if len(key[0]) + len(key[1]) > MAX_BYTES:
            return
        if len(self._heads) >= self._most:
            self._heads.clear()
        self._heads[key] = head

    def clear(self) -> None:
        """Forget all: what they were judged by has changed."""
        self._heads.clear()


def split(data: bytes) -> tuple[Key, bytes]:
    """The key of a head and its body, if `data` is a whole message with a body; else nothing."""
    # `partition`, as a method with one argument, takes half as long as `find` and slices.
    head, _, body = data.partition(b"\r\n\r\n")
    if not body:
        return NOTHING
    before, found, behind = (head + b"\r\n").partition(b"ength: %d\r\n" % len(body))
    if not found or not before.endswith(LENGTH_NAMES):
        return NOTHING
    return (before, behind), body
