"""The lines of a watch: events, as the API server writes them. Pure."""

from dataclasses import dataclass
from typing import Any, Literal

import orjson

from router.discovery.pod import MalformedObject, Pod, read_pod, version_of

__all__ = ["MAX_LINE_BYTES", "Bookmark", "Change", "Lines", "Refused", "WatchEvent", "read_event"]

MAX_LINE_BYTES = 8 << 20
"""An object has at most 1.5 MiB (etcd's limit for requests), and escapes make it longer as JSON."""


@dataclass(frozen=True, slots=True)
class Change:
    """A pod is there, or gone."""

    pod: Pod
    is_there: bool


@dataclass(frozen=True, slots=True)
class Bookmark:
    """Nothing has happened up to this resourceVersion but what was told."""

    version: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The watch cannot go on. `status` is an HTTP status, of a stream that began with 200."""

    status: int
    message: str


WatchEvent = Change | Bookmark | Refused


class Lines:
    """Cuts what is read into whole lines."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that end in `data`, empty ones left out. Raises MalformedObject when a line is
        too long."""
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
    """Read one line. Raises MalformedObject."""
    try:
        event: dict[str, Any] = orjson.loads(line)
        kind, item = event["type"], event["object"]
        if kind == "ERROR":
            return Refused(int(item.get("code") or 500), str(item.get("message") or ""))
        if kind == "BOOKMARK":
            return Bookmark(version_of(item["metadata"]))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise MalformedObject(f"a line of a watch is no event: {error!r}") from None
    if kind not in KINDS:
        raise MalformedObject(f"a watch has an event of an unknown type: {str(kind)[:40]!r}")
    return Change(read_pod(item), KINDS[kind] == "there")
