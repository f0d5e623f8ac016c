"""Parses the lines of a watch, which are events in the API server's format. Pure."""

from dataclasses import dataclass
from typing import Any, Literal

import orjson

from router.discovery.pod import MalformedObject, Pod, read_pod, version_of

__all__ = ["MAX_LINE_BYTES", "Bookmark", "Change", "Lines", "Refused", "WatchEvent", "read_event"]

MAX_LINE_BYTES = 8 << 20
"""Longest line in bytes. An object has at most 1.5 MiB (etcd's limit), and JSON escapes make it
longer."""


@dataclass(frozen=True, slots=True)
class Change:
    """A pod was added, changed or removed."""

    pod: Pod
    is_there: bool


@dataclass(frozen=True, slots=True)
class Bookmark:
    """There are no other events up to this resourceVersion than those already sent."""

    version: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The watch cannot continue. `status` is an HTTP status, in a stream that began with 200."""

    status: int
    message: str


WatchEvent = Change | Bookmark | Refused


class Lines:
    """Splits data into lines."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that end in `data`, without empty ones. Raises MalformedObject if a line is too
        long."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            raise MalformedObject(f"a line of a watch is longer than {MAX_LINE_BYTES} bytes")
        return [line for line in lines if line.strip()]


KINDS: dict[str, Literal["there", "gone"]] = {
    "ADDED": "there",
    "MODIFIED": "there",
    "DELETED": "gone",
}


def read_event(line: bytes) -> WatchEvent:
    """Parse a line. Raises MalformedObject."""
    try:
        event: dict[str, Any] = orjson.loads(line)
        kind, item = event["type"], event["object"]
        if kind == "ERROR":
            return Refused(int(item.get("code") or 500), str(item.get("message") or ""))
        if kind == "BOOKMARK":
            return Bookmark(version_of(item["metadata"]))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise MalformedObject(f"a line of a watch is no event: {error!r}") from None
    if not isinstance(kind, str) or kind not in KINDS:
        raise MalformedObject(f"a watch has an event of an unknown type: {str(kind)[:40]!r}")
    return Change(read_pod(item), KINDS[kind] == "there")
