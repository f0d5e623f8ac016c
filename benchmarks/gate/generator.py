"""One stream of the offered concurrency: a connection that asks, reads an answer, asks again.

Knows HTTP framing (httptools) and the events of a streamed chat completion, by AIPerf's definitions
(reference 2.3). It must stay cheap: an event that is plainly a piece of content is not parsed.
"""

import asyncio
import time
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import httptools
import orjson

SEPARATOR = b"\n\n"
# As vLLM, SGLang and this router write it. A quote inside JSON text is escaped, so that a model
# which talks about JSON cannot write these bytes.
CONTENT, EMPTY = b'"content":"', b'"content":""'
USAGE = b'"usage":{'
DONE = b"[DONE]"
# What is kept of an answer that is no stream, to name its error.
BODY_LIMIT = 8192
# Who served it, where the endpoint says so: this router, and gateways with an endpoint picker.
WORKER = (b"x-pd-router-endpoint", b"x-gateway-destination-endpoint-served")


@dataclass(slots=True)
class Seen:
    """What was seen of one request. Times are of time.monotonic.

    `sent` is when it was meant to be sent, where that was arranged: it was then `late` by so many
    seconds. It is given up by the client after `give_up` seconds: `cancelled`. `events` collects
    what comes, for those who want to read it: then `text` is what was said.
    """

    number: int
    prompt: int
    sent: float
    written: float | None = None
    first: float | None = None
    last: float | None = None
    ended: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    status: int | None = None
    error: str | None = None
    worker: str | None = None
    gaps: "array[float]" = field(default_factory=lambda: array("d"))
    turn: int = 0
    late: float | None = None
    give_up: float | None = None
    cancelled: bool = False
    events: list[bytes] | None = None
    text: str | None = None

    @property
    def chunks(self) -> int:
        """Pieces of content so far."""
        return 0 if self.first is None else len(self.gaps) + 1

    def content(self, now: float) -> None:
        """A piece of content arrived."""
        if self.last is None:
            self.first = now
        else:
            self.gaps.append(now - self.last)
        self.last = now


class Crowd(Protocol):
    """What a stream needs of the load that it is part of."""

    timeout: float

    def next_request(self) -> tuple[Seen, bytes] | None:
        """What to send now; None when there is no more to ask."""

    def arrived(self, seen: Seen, chunks: int) -> None:
        """So many chunks with content came in one read."""

    def ended(self, seen: Seen) -> None:
        """The outcome of a request is known."""

    def idle(self, stream: "Stream") -> None:
        """This stream will not ask again."""

    def connect(self, stream: "Stream") -> None:
        """Open this stream's connection; tell it `unreachable` where that fails."""


class Stream(asyncio.Protocol):
    """One slot. Every request that it takes ends exactly once, unless it is stopped."""

    def __init__(self, crowd: Crowd, loop: asyncio.AbstractEventLoop) -> None:
        self._crowd, self._loop = crowd, loop
        self._transport: asyncio.Transport | None = None
        self._seen: Seen | None = None
        self._request = b""
        self._timer: asyncio.TimerHandle | None = None
        self._fresh = True
        self._stopped = False
        self._new_answer()

    def _new_answer(self) -> None:
        self._tail, self._body = b"", b""
        self._done = self._heard = False

    def ask(self) -> None:
        """Take the next request and send it, on a new connection if there is none."""
        taken = None if self._stopped else self._crowd.next_request()
        if taken is None:
            self._crowd.idle(self)
            return
        self._seen, self._request = taken
        self._new_answer()
        give_up, timeout = self._seen.give_up, self._crowd.timeout
        if give_up is not None and give_up < timeout:
            self._timer = self._loop.call_later(give_up, self._given_up)
        else:
            self._timer = self._loop.call_later(timeout, self._timed_out)
        if self._transport is None:
            self._crowd.connect(self)
        else:
            self._write()

    def _write(self) -> None:
        if self._seen is not None and self._transport is not None:
            self._transport.write(self._request)
            self._seen.written = time.monotonic()

    def stop(self) -> None:
        """Give up what is in flight: it is neither answered nor failed. Asks no more."""
        self._stopped = True
        self._seen = None
        self._cancel_timer()
        self.close()

    def close(self) -> None:
        """Drop the connection."""
        if self._transport is not None:
            transport, self._transport = self._transport, None
            transport.abort()

    def unreachable(self, reason: str) -> None:
        """The connection could not be opened."""
        self._fail(reason)

    def _timed_out(self) -> None:
        self._fail(f"timed out after {self._crowd.timeout:g} s")

    def _given_up(self) -> None:
        """As a user who closes the page: no success, and no failure of the endpoint's."""
        if self._seen is not None:
            self._seen.cancelled = True
            self._finish(keep=False)

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are asyncio.Transport in all but the type.
        self._transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpResponseParser(self)
        self._fresh = True
        if self._stopped or self._seen is None:  # timed out while it connected
            self.close()
        else:
            self._write()

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        self._heard = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"malformed answer: {type(error).__name__}")
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is None:  # we dropped it ourselves
            return
        self._transport = None
        if self._seen is None:
            return
        if not self._fresh and not self._heard:
            # Kept alive, and closed by the server just when we wrote: it has not seen the request.
            self._crowd.connect(self)
        elif self._done and exc is None:
            self.on_message_complete()  # HTTP/1.0: the end of the connection is the end
        else:
            self._fail("connection lost")

    # httptools' side

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._seen is not None and name.lower() in WORKER:
            self._seen.worker = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._seen is not None:
            self._seen.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        seen = self._seen
        if seen is None:
            return
        if seen.status != 200:
            self._body = (self._body + data)[:BODY_LIMIT]
            return
        if self._tail:
            data = self._tail + data
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        *events, self._tail = data.split(SEPARATOR)
        if seen.events is not None:
            seen.events += events
        now, before = time.monotonic(), seen.chunks
        for event in events:
            # The last piece may carry the usage with it.
            if CONTENT in event and EMPTY not in event and USAGE not in event:
                seen.content(now)
            else:
                self._other(event, seen, now)
        if new := seen.chunks - before:
            self._crowd.arrived(seen, new)

    def _other(self, event: bytes, seen: Seen, now: float) -> None:
        """Roles, usage, errors, the end, comments, and content that is written another way."""
        data = b"\n".join(
            line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")
        )
        if not data:
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
        _count(found.get("usage"), seen)
        if has_content(found):
            seen.content(now)

    def on_message_complete(self) -> None:
        seen = self._seen
        if seen is None:
            return
        keep = self._parser.should_keep_alive()
        if self._tail.strip() == b"data: " + DONE:  # without the empty line that ends an event
            self._done = True
        if (wrong := self._wrong(seen)) is not None:
            self._fail(wrong, keep=keep)
        else:
            self._finish(keep=keep)

    def _wrong(self, seen: Seen) -> str | None:
        if seen.status != 200:
            return f"status {seen.status}{_named(self._body)}"
        if seen.error is not None:
            return seen.error
        if not self._done:
            return "stream ended without [DONE]"
        return "no content" if seen.first is None else None

    def _fail(self, reason: str, *, keep: bool = False) -> None:
        if self._seen is None:
            return
        self._seen.error = self._seen.error or reason
        self._finish(keep=keep)

    def _finish(self, *, keep: bool) -> None:
        seen, self._seen = self._seen, None
        assert seen is not None
        self._cancel_timer()
        seen.ended = time.monotonic()
        self._fresh = False
        if not keep:
            self.close()
        self._crowd.ended(seen)
        # Not from here: an endpoint that refuses everything at once would be a recursion.
        self._loop.call_soon(self.ask)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def has_content(found: Mapping[str, Any]) -> bool:
    """Text, reasoning or a tool call: what AIPerf takes for content."""
    choices = found.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        delta = choice.get("delta") if isinstance(choice, dict) else None
        if isinstance(delta, dict) and any(
            delta.get(name) for name in ("content", "reasoning_content", "reasoning", "tool_calls")
        ):
            return True
    return False


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
