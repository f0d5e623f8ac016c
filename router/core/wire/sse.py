"""Server-sent events as bytes: splits a stream into events, and classifies the first ones.

Parsing the JSON of each event would cost more than relaying it. The relay needs only the ends of
events, and parses events only up to the first one with content or an error.
"""

import re
from enum import Enum, auto
from typing import Any, Final

from router.core.wire.jsonspan import engine_json
from router.core.wire.usage import is_usage_only

__all__ = [
    "ABORTED",
    "CONTENT",
    "DONE",
    "ERROR",
    "FINISHED",
    "MAX_EVENT_BYTES",
    "PREAMBLE",
    "EventKind",
    "EventSplitter",
    "data_events",
    "data_of",
    "ends_stream",
    "error_in",
    "event_kind",
    "events",
    "has_data",
    "keep_alive",
]

DONE = b"data: [DONE]\n\n"

MAX_EVENT_BYTES = 4 << 20
"""A larger event is passed on in pieces, to limit the buffer (bytes). The first chunk of a chat
completion can contain the prompt's token ids, about 0.5 MB for 60,000 tokens."""

_EVENT_END = re.compile(rb"\r?\n\r?\n")


class EventSplitter:
    """Splits a stream of bytes at the ends of events, so that only complete events are relayed.

    If the stream breaks within an event, a valid error event can still be sent.
    """

    __slots__ = ("_tail",)

    def __init__(self) -> None:
        self._tail = bytearray()

    @property
    def is_empty(self) -> bool:
        """Whether the buffer is empty."""
        return not self._tail

    @property
    def buffered(self) -> int:
        """Number of bytes in the buffer."""
        return len(self._tail)

    def feed(self, data: bytes) -> bytes:
        """Add data. Returns the events that it completes; the rest is buffered."""
        tail = self._tail
        if not tail and data.endswith(b"\n\n"):
            return data
        # A large event arrives in thousands of pieces, so each byte is searched only once, except
        # the last two, which may be part of an end that spans two pieces.
        start = max(0, len(tail) - 2)
        tail += data
        cut = _last_end(tail, start)
        if cut == 0 and len(tail) > MAX_EVENT_BYTES:
            cut = len(tail)
        whole = bytes(tail[:cut])
        del tail[:cut]
        return whole

    def rest(self) -> bytes:
        """Return the bytes after the last complete event and empty the buffer."""
        rest = bytes(self._tail)
        self._tail.clear()
        return rest


def _last_end(data: bytearray, start: int) -> int:
    """The offset after the last event end that ends after `start`; 0 if there is none."""
    cut = data.rfind(b"\n\n", start) + 2
    crlf = data.rfind(b"\n\r\n", start) + 3
    return max(cut if cut > 1 else 0, crlf if crlf > 2 else 0)


def events(data: bytes) -> list[bytes]:
    """Split complete events; each keeps its terminator."""
    if data.find(b"\r") < 0:  # nearly always; the regular expression takes ten times as long
        return [event + b"\n\n" for event in data.split(b"\n\n")[:-1]]
    ends = [found.end() for found in _EVENT_END.finditer(data)]
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def data_of(event: bytes) -> bytes:
    """The data of an event, its lines joined; empty for a comment."""
    is_one_line = event.find(b"\n") == len(event) - 2 and event.find(b"\r") < 0
    if is_one_line and event.startswith(b"data: "):  # nearly always
        return event[6:-2]
    lines = [line for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines)


def has_data(read: bytes) -> bool:
    """Whether a read completes an event with data, not just comments."""
    return any(map(data_of, events(read)))


_ERROR = re.compile(rb'"error"(?!\s*:\s*null)')
_FAILED = b'"response.failed"'
"""Found in error events. In generated text, quotes are escaped. One pattern for both, which begins
with no literal, takes twice as long."""


def error_in(data: bytes) -> bytes:
    """The error event among these events, which may be a framed chunk; empty if there is none."""
    if _ERROR.search(data) is not None or data.find(_FAILED) >= 0:
        for event in events(data):
            if event_kind(event) is ERROR:
                return event
    return b""


FINISHED: Final = (b'"finish_reason":"', b'"finish_reason": "')
"""Found in the last event of each choice; in other events finish_reason is null. Within text,
quotes are escaped."""

_LAST: Final = (
    *(b'"response.completed"', b'"response.incomplete"', b'"message_stop"'),
    *FINISHED,
)
"""Found in the last events of streams that need no [DONE]."""


def ends_stream(data: bytes) -> bool:
    """Whether these events, which may be a framed chunk, or the lines of an incomplete event behind
    them can be the last of a stream: [DONE], a finish_reason, usage alone, an error, or the last
    event of /v1/responses or /v1/messages. A line of JSON never ends with [DONE]."""
    if data.rstrip().endswith(b"[DONE]"):
        return True
    is_last = is_usage_only(data) or any(data.find(mark) >= 0 for mark in _LAST)
    return data.endswith((b"\n", b"\r")) and (is_last or bool(error_in(data)))


class EventKind(Enum):
    """The kind of an event at the beginning of a stream."""

    PREAMBLE = auto()
    """A comment, a role or an empty delta: another engine can still answer instead."""
    CONTENT = auto()
    """The event contains a token."""
    ERROR = auto()
    """The engine reports a failure."""
    ABORTED = auto()
    """The engine aborted the request before its first token."""


# Enum members are looked up slowly in Python 3.11.
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
    """Classify an event. Unknown events count as content, so that nothing is held back forever."""
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
    """Number of events with data. Comments do not count: with --sse-keep-alive-interval vLLM sends
    them even if its core hangs."""
    found = data.count(b"\n\n")
    if data.startswith(b":"):
        found -= 1
    return found - data.count(b"\n\n:")


def keep_alive(event: bytes) -> bytes:
    """The comment to send at once although this preamble event is held back; mostly empty.

    Comments and `ping` events keep connections alive and must not wait for the first content. A
    comment is passed on. A `ping` may not precede `message_start`, so a comment is sent instead.
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


# Members of a chat delta that are not content.
_SILENT_FIELDS = frozenset({"role"})


def _is_empty(choice: object) -> bool:
    """Whether a choice has no token and has not ended."""
    if not isinstance(choice, dict) or choice.get("finish_reason") is not None:
        return False
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return choice.get("text") == ""
    return not any(value for field, value in delta.items() if field not in _SILENT_FIELDS)
