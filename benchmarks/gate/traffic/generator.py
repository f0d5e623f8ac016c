"""One stream of the offered concurrency: a connection that asks, reads an answer, asks again.

Knows HTTP framing (httptools) and the events of a streamed chat completion, by AIPerf's definitions
(reference 2.3). It must stay cheap: an event that is plainly a piece of content is not parsed.
"""

import re
from collections.abc import Mapping
from typing import Any

import orjson

from benchmarks.streaming.client import Seen, Stream, listed
from benchmarks.streaming.sse import DONE, data_of

# As vLLM, SGLang and this router write it. A quote inside JSON text is escaped, so that a model
# which talks about JSON cannot write these bytes.
CONTENT, EMPTY = b'"content":"', b'"content":""'
USAGE = b'"usage":{'
# An engine ends an aborted stream, for example at shutdown, with status 200 and [DONE].
ABORTED = b'"finish_reason":"abort"'
# A stream whose head names another engine, which the router then left, or none, because it was sent
# before any engine had answered (--sse-keep-alive), has the name in a comment.
ENGINE = re.compile(rb": x-pd-router-endpoint (\S+)(?: left (.*))?")


class ChatStream(Stream):
    """Content counts as an arrival, whether text, reasoning or a tool call."""

    def _read(self, seen: Seen, events: list[bytes], now: float) -> None:
        if seen.events is not None:
            seen.events += events
        before = seen.chunks
        for event in events:
            # The last piece may carry the usage with it, and why it is the last.
            if (
                CONTENT in event
                and EMPTY not in event
                and USAGE not in event
                and ABORTED not in event
            ):
                seen.arrival(now)
            else:
                self._other(event, seen, now)
        if new := seen.chunks - before:
            self._crowd.arrived(seen, new)

    def _other(self, event: bytes, seen: Seen, now: float) -> None:
        """Roles, usage, errors, the end, aborts, comments, and content written another way."""
        data = data_of(event)
        if not data:
            if (named := ENGINE.fullmatch(event.strip())) is not None:
                seen.worker = named[1].decode("latin-1")
                seen.left = listed(named[2]) if named[2] else ()
            return
        if data == DONE:
            self._done = True
            return
        found = _object(data)
        if found is None:
            seen.error = seen.error or "malformed event"
            return
        if (error := found.get("error")) is not None:
            seen.error = seen.error or f"error event: {kind_of(error)}"
        if was_aborted(found):
            seen.error = seen.error or "aborted by the engine"
        _count(found.get("usage"), seen)
        if has_content(found):
            seen.arrival(now)

    def _wrong(self, seen: Seen) -> str | None:
        if seen.status != 200:
            return f"status {seen.status}{_named(self._body)}"
        if seen.error is not None:
            return seen.error
        # The last event may come without the empty line that ends it.
        if not self._done and data_of(self._events.tail) != DONE:
            return "stream ended without [DONE]"
        return "no content" if seen.first is None else None


def has_content(found: Mapping[str, Any]) -> bool:
    """Text, reasoning or a tool call: what AIPerf takes for content."""
    for choice in _choices(found):
        delta = choice.get("delta")
        if isinstance(delta, dict) and any(
            delta.get(name) for name in ("content", "reasoning_content", "reasoning", "tool_calls")
        ):
            return True
    return False


def was_aborted(found: Mapping[str, Any]) -> bool:
    """Whether the engine gave the answer up: what there is of it is not all of it."""
    return any(choice.get("finish_reason") == "abort" for choice in _choices(found))


def _choices(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    choices = found.get("choices")
    return [each for each in choices if isinstance(each, dict)] if isinstance(choices, list) else []


def _count(usage: object, seen: Seen) -> None:
    if not isinstance(usage, dict):
        return
    seen.input_tokens = _whole(usage.get("prompt_tokens"), seen.input_tokens)
    seen.output_tokens = _whole(usage.get("completion_tokens"), seen.output_tokens)
    details = usage.get("prompt_tokens_details")
    if isinstance(details, dict):
        seen.cached_tokens = _whole(details.get("cached_tokens"), seen.cached_tokens)


def _whole(value: object, otherwise: int | None) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise


def kind_of(error: object) -> str:
    """What an error is called: its type, which is one of few, not its message."""
    if isinstance(error, dict):
        return str(error.get("type") or error.get("code") or "unnamed")[:80]
    return "unnamed"


def _named(body: bytes) -> str:
    error = (_object(body) or {}).get("error")
    return "" if error is None else f": {kind_of(error)}"


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None
