"""A cache of message heads, so that a head that is sent repeatedly is parsed and validated only
once.

The requests of one client have the same head except for Content-Length; so do the responses of one
engine. Where the parser has accepted a head with a body, the same bytes with another length have
the same meaning.
"""

from collections.abc import Callable
from typing import Final, Generic, TypeVar

__all__ = ["NOTHING", "VIEWED_BYTES", "Key", "KnownHeads", "split", "split_large"]

MAX_BYTES: Final = 2048
"""Longest head in bytes that is cached; those of common SDKs have about 500."""

VIEWED_BYTES: Final = 64 << 10
"""Messages above this size in bytes are split by `split_large`: copying a body of 64 KiB takes 4 us
and new memory, a view and what it asks for later 1 us."""

LENGTH_NAMES: Final = (b"\r\ncontent-l", b"\r\nContent-L")
"""What precedes `ength: ` in a Content-Length line."""

Key = tuple[bytes, bytes]
"""The bytes of a head before the digits of Content-Length and after them. For a head without
Content-Length: the whole head and empty bytes."""

NOTHING: Final = ((b"", b""), b"")

Head = TypeVar("Head")


class KnownHeads(Generic[Head]):
    """A cache of up to `most` heads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._heads: dict[Key, Head] = {}
        self.find: Callable[[Key], Head | None] = self._heads.get
        """Returns the head that was added with this key, or None."""

    def add(self, key: Key, head: Head) -> None:
        """Add a head. A full cache is cleared: the heads in use are soon added again."""
        if len(key[0]) + len(key[1]) > MAX_BYTES:
            return
        if len(self._heads) >= self._most:
            self._heads.clear()
        self._heads[key] = head

    def clear(self) -> None:
        """Remove all heads, because the settings by which they were validated have changed."""
        self._heads.clear()


def split(data: bytes) -> tuple[Key, bytes]:
    """Split a message into the key of its head and its body. Returns NOTHING unless `data` is
    exactly one message with a body and Content-Length."""
    # `partition` takes half the time of `find` with slices.
    head, _, body = data.partition(b"\r\n\r\n")
    if not body:
        return NOTHING
    before, found, behind = (head + b"\r\n").partition(b"ength: %d\r\n" % len(body))
    if not found or not before.endswith(LENGTH_NAMES):
        return NOTHING
    return (before, behind), body


def split_large(data: bytes) -> tuple[Key, bytes | memoryview]:
    """The same for a large message, whose body is not copied."""
    end = data.find(b"\r\n\r\n", 0, MAX_BYTES)
    body = memoryview(data)[end + 4 :]
    if end < 0 or not body:
        return NOTHING
    before, found, behind = data[: end + 2].partition(b"ength: %d\r\n" % len(body))
    if not found or not before.endswith(LENGTH_NAMES):
        return NOTHING
    return (before, behind), body
