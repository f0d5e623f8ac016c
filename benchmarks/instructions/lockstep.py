"""Engines and one client in a single process, in lock-step (started by the bench).

An engine writes its next event when the client has read the last one. So the router gets one event
per read and has one thing to do at a time, however fast or busy the machine is.
"""

import asyncio
import functools
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import httptools
import orjson
import uvloop

from benchmarks import control, frames, handover
from benchmarks.engine import CHARACTERS_PER_TOKEN, NO_BODY, NOT_FOUND, VERSION
from benchmarks.instructions.load import ENDS, Load
from benchmarks.sse import EventCounter

GETS = {
    b"/metrics": frames.metrics(0),
    b"/v1/models": frames.models(),
    b"/health": NO_BODY,
    b"/version": VERSION,
}


class Stage:
    """The answer in progress, and what the engines saw."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self._written = 0
        self._rest: Iterator[bytes] = iter(())
        self._transport: asyncio.Transport | None = None

    def stream(self, transport: asyncio.Transport, tokens: int, tail: bytes) -> None:
        """Write the first event of a stream; `received` writes the others."""
        chunks = (frames.TOKENS[n % len(frames.TOKENS)] for n in range(1, tokens - ENDS + 1))
        self._rest = _then(chunks, tail)
        self._transport = transport
        first = frames.STREAM_HEAD + frames.ROLE + frames.TOKENS[0]
        self._written = _events(first)
        transport.write(first)

    def received(self, events: int) -> None:
        """The client has so many events of the answer."""
        if events < self._written or self._transport is None:
            return
        if (chunk := next(self._rest, None)) is not None:
            self._written += _events(chunk)
            self._transport.write(chunk)


def _then(chunks: Iterator[bytes], tail: bytes) -> Iterator[bytes]:
    yield from chunks
    yield tail


def _events(data: bytes) -> int:
    return data.count(b"\n\n")


class EngineConnection(asyncio.Protocol):
    """A connection of the router's to an engine."""

    def __init__(self, stage: Stage, number: int, role: str) -> None:
        self._stage, self._number, self._role = stage, number, role
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport
        self._path, self._body = b"", b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are asyncio.Transport in all but the type.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._path, self._body = b"", b""

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        if self._parser.get_method() == b"POST":
            self._post(orjson.loads(self._body))
        else:
            self._transport.write(GETS.get(self._path.partition(b"?")[0], NOT_FOUND))

    def _post(self, asked: dict[str, Any]) -> None:
        prompt = len(self._body) // CHARACTERS_PER_TOKEN
        params = asked.get("kv_transfer_params")
        if self._role == "prefill":
            self._stage.seen["prefills"] += 1
            given = handover.given(self._number, prompt)
            self._transport.write(frames.completion(prompt, 1, given))
            return
        if params is not None and handover.intact(params):
            self._stage.seen["handovers"] += 1
        self._stage.seen["decodes"] += 1
        tokens = asked.get("max_completion_tokens") or asked["max_tokens"]
        if asked.get("stream"):
            usage = bool((asked.get("stream_options") or {}).get("include_usage"))
            tail = frames.stream_tail(usage, prompt, tokens)
            self._stage.stream(self._transport, tokens, tail)
        else:
            self._transport.write(frames.completion(prompt, tokens))


class Client(asyncio.Protocol):
    """The one client: asks, reads the whole answer, asks again; then says how it went."""

    def __init__(self, stage: Stage, load: Load) -> None:
        self._stage, self._load = stage, load
        self._request = load.request()
        self._left = load.requests
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport
        self._counter = EventCounter()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._stage.seen.clear()
        self._ask()

    def _ask(self) -> None:
        self._counter = EventCounter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        if self._load.stream:
            self._counter.feed(data)
            self._stage.received(self._counter.events)

    def on_message_complete(self) -> None:
        if wrong := self._wrong():
            self._end(wrong)
            return
        self._left -= 1
        if self._left:
            self._ask()
        else:
            self._end(None)

    def _wrong(self) -> str | None:
        if (status := self._parser.get_status_code()) != 200:
            return f"status {status}"
        expected = frames.stream_events(self._load.tokens, with_usage=True)
        if self._load.stream and (self._counter.events != expected or not self._counter.done):
            return f"{self._counter.events} of {expected} events"
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._left:
            self._end("connection lost")

    def _end(self, failure: str | None) -> None:
        self._left = 0
        self._transport.close()
        control.say("report", failure=failure, seen=self._stage.seen)


async def _serve(stage: Stage, roles: list[str]) -> dict[str, list[str]]:
    loop = asyncio.get_running_loop()
    urls: dict[str, list[str]] = {"decode": [], "prefill": []}
    for number, role in enumerate(roles):
        factory = functools.partial(EngineConnection, stage, number, role)
        server = await loop.create_server(factory, "127.0.0.1", 0)
        urls[role].append(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    return urls


def run(decode: int, prefill: int) -> None:
    """Serve until standard input ends. A line, "PORT LOAD", puts a load on the router there."""
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    stage, started = Stage(), set[asyncio.Task[Any]]()
    control.say(
        "ready",
        **loop.run_until_complete(_serve(stage, ["decode"] * decode + ["prefill"] * prefill)),
    )

    def hear(line: str) -> None:
        port, _, load = line.partition(" ")
        factory = functools.partial(Client, stage, Load.decode(load))
        task = loop.create_task(loop.create_connection(factory, "127.0.0.1", int(port)))
        started.add(task)
        task.add_done_callback(started.discard)

    control.listen(loop, hear)
    loop.run_forever()
