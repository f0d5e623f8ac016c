"""Server-sent events as bytes: splits them, and classifies the first ones of a stream.

Parsing JSON per event would cost more than relaying it: the relay needs only the ends of events,
and parses events only until the first one with content or an error.
"""

import re
from enum import Enum, auto
from typing import Any, Final

from router.core.errors import RouterError
from router.core.values import RouteKind
from router.core.wire.jsonspan import engine_json

__all__ = [
    "ABORTED",
    "CONTENT",
    "DONE",
    "ERROR",
    "MAX_EVENT_BYTES",
    "PREAMBLE",
    "EventKind",
    "EventSplitter",
    "data_events",
    "data_of",
    "error_frame",
    "error_in",
    "event_kind",
    "events",
    "has_data",
    "keep_alive",
    "status_of",
]

DONE = b"data: [DONE]\n\n"

MAX_EVENT_BYTES = 4 << 20
"""A larger event is passed on in pieces, to bound the buffer. The first chunk of a chat can carry
the prompt's token ids, about 0.5 MB for 60k tokens."""

_EVENT_END = re.compile(rb"\r?\n\r?\n")


class EventSplitter:
    """Splits a stream of bytes at the ends of events, so that only whole events are relayed.

    A stream that breaks within an event can then still end in a valid error frame.
    """

    __slots__ = ("_tail",)

    def __init__(self) -> None:
        self._tail = bytearray()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is buffered."""
        return not self._tail

    @property
    def buffered(self) -> int:
        """How many bytes are."""
        return len(self._tail)

    def feed(self, data: bytes) -> bytes:
        """The events that `data` completes; the rest is buffered."""
        tail = self._tail
        if not tail and data.endswith(b"\n\n"):
            return data
        # A large event comes in thousands of pieces, so each byte is looked at once; of an end that
        # spans two pieces at most two bytes have been looked at before.
        start = max(0, len(tail) - 2)
        tail += data
        cut = _last_end(tail, start)
        if cut == 0 and len(tail) > MAX_EVENT_BYTES:
            cut = len(tail)
        whole = bytes(tail[:cut])
        del tail[:cut]
        return whole

    def rest(self) -> bytes:
        """The bytes after the last whole event; empties the buffer."""
        rest = bytes(self._tail)
        self._tail.clear()
        return rest


def _last_end(data: bytearray, start: int) -> int:
    """The offset behind the last event end at or after `start`, 0 if there is none."""
    cut = data.rfind(b"\n\n", start) + 2
    crlf = data.rfind(b"\n\r\n", start) + 3
    return max(cut if cut > 1 else 0, crlf if crlf > 2 else 0)


def events(data: bytes) -> list[bytes]:
    """Split whole events; each keeps its terminator."""
    if data.find(b"\r") < 0:  # as nearly always; the regular expression takes ten times as long
        return [event + b"\n\n" for event in data.split(b"\n\n")[:-1]]
    ends = [found.end() for found in _EVENT_END.finditer(data)]
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def data_of(event: bytes) -> bytes:
    """The data of one event, its lines joined; empty for a comment."""
    is_one_line = event.find(b"\n") == len(event) - 2 and event.find(b"\r") < 0
    if is_one_line and event.startswith(b"data: "):  # as nearly always
        return event[6:-2]
    lines = [line for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines)


def has_data(read: bytes) -> bool:
    """Whether one of the events that this read completes is no comment."""
    return any(map(data_of, events(read)))


STATUSES: Final = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "overloaded_error": 503,
}
"""By the type of an error: those of /v1/messages have no code."""


def status_of(event: bytes) -> int:
    """The HTTP status that an error event stands for: its `code` if that is one, or that of its
    type, else 500."""
    try:
        document: Any = engine_json(data_of(event))
        error = document["error"]
        code, kind = error.get("code"), error.get("type")
    except (ValueError, KeyError, TypeError, AttributeError):
        return 500
    if isinstance(code, int) and 400 <= code <= 599:
        return code
    return STATUSES.get(kind, 500) if isinstance(kind, str) else 500


_ERROR = re.compile(rb'"error"(?!\s*:\s*null)')
"""What an error event holds. In the text of a token quotes are escaped."""


def error_in(data: bytes) -> bytes:
    """The error event among these events, also if they are a chunk in its framing; empty if there
    is none."""
    if _ERROR.search(data) is not None:
        for event in events(data):
            if event_kind(event) is ERROR:
                return event
    return b""


class EventKind(Enum):
    """The kind of an event at the beginning of a stream."""

    PREAMBLE = auto()
    """A comment, a role, an empty delta: another engine can still answer instead."""
    CONTENT = auto()
    """The event carries a token."""
    ERROR = auto()
    """The engine reports a failure."""
    ABORTED = auto()
    """The engine dropped the request before its first token."""


# Python 3.11 looks an Enum's members up in a slow way.
PREAMBLE: Final = EventKind.PREAMBLE
CONTENT: Final = EventKind.CONTENT
ERROR: Final = EventKind.ERROR
ABORTED: Final = EventKind.ABORTED


_PREAMBLE_TYPES = frozenset(
    {
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.reasoning_part.added",
        "response.reasoning_summary_part.added",
        "message_start",
        "content_block_start",
        "ping",
    }
)


def event_kind(event: bytes) -> EventKind:
    """Classify an event; unknown ones are content, so that nothing is held back forever."""
    data = data_of(event)
    if not data:
        return PREAMBLE
    try:
        document = engine_json(data)
    except ValueError:
        return CONTENT
    if not isinstance(document, dict):
        return CONTENT
    if document.get("error") or document.get("type") in ("error", "response.failed"):
        return ERROR
    if _is_preamble(document):
        return PREAMBLE
    return ABORTED if _is_aborted(document) else CONTENT


def data_events(data: bytes) -> int:
    """How many of these whole events are no comments: with --sse-keep-alive-interval vLLM sends
    those also while its core hangs."""
    found = data.count(b"\n\n")
    if data.startswith(b":"):
        found -= 1
    return found - data.count(b"\n\n:")


def keep_alive(event: bytes) -> bytes:
    """The comment to send at once although this preamble event is held back; empty for most.

    Comments and `ping` events keep connections alive and must not wait for the first content. A
    comment is sent as it is; a `ping` may not precede `message_start`: a comment is sent instead.
    """
    if not data_of(event):
        return event
    return b": ping\n\n" if b'"ping"' in event else b""


def _is_preamble(document: dict[str, Any]) -> bool:
    if "choices" in document:
        choices = document["choices"]
        return isinstance(choices, list) and bool(choices) and all(map(_is_empty, choices))
    kind = document.get("type")
    return isinstance(kind, str) and kind in _PREAMBLE_TYPES


def _is_aborted(document: dict[str, Any]) -> bool:
    choices = document.get("choices")
    return isinstance(choices, list) and bool(choices) and all(map(_was_dropped, choices))


def _was_dropped(choice: object) -> bool:
    if not isinstance(choice, dict) or choice.get("finish_reason") != "abort":
        return False
    return _is_empty({**choice, "finish_reason": None})


# Fields of a chat delta that are no content.
_SILENT_FIELDS = frozenset({"role"})


def _is_empty(choice: object) -> bool:
    """Whether a choice has no token, and goes on."""
    if not isinstance(choice, dict) or choice.get("finish_reason") is not None:
        return False
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return choice.get("text") == ""
    return not any(value for field, value in delta.items() if field not in _SILENT_FIELDS)


NAMED_EVENTS = frozenset({RouteKind.RESPONSES, RouteKind.MESSAGES})
"""Routes whose clients go by the name of an event and by the `type` in its data."""


def error_frame(error: RouterError, kind: RouteKind) -> bytes:
    """The end of a failed stream: the error as an event, then `[DONE]`."""
    if kind in NAMED_EVENTS:
        return b'event: error\ndata: {"type":"error",%b\n\n%b' % (error.body()[1:], DONE)
    return b"data: %b\n\n%b" % (error.body(), DONE)
