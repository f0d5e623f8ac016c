"""Engines and clients in a single process, in lock-step (started by the bench).

An engine writes the next event when the client has read the last one. So the router gets one event
per read, however fast or busy the machine is. Of streams that go together each gets its next event
when all have the last one, as in the steps of an engine's batch.
"""

import asyncio
import functools
import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import httptools
import orjson
import uvloop

from benchmarks.engines import frames, handover
from benchmarks.engines.engine import CHARACTERS_PER_TOKEN, NO_BODY, NOT_FOUND, VERSION
from benchmarks.instructions.load import ENDS, Load
from benchmarks.streaming.sse import DONE, EventReader, data_of
from benchmarks.system import control

GETS = {
    b"/metrics": frames.metrics(0),
    b"/v1/models": frames.models(),
    b"/health": NO_BODY,
    b"/version": VERSION,
}


class Stage:
    """The answers in progress, and counts of the engines.

    `together` streams go in step: once so many are there and the clients have all that was written,
    each gets its next event.
    """

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.together = 1
        self.prompts = itertools.count()
        """Numbers for new prompts, of all loads."""
        self._streams: list[tuple[asyncio.Transport, Iterator[bytes]]] = []
        # Events that the clients do not have yet.
        self._ahead = 0

    def begin(self, together: int) -> None:
        """Another load."""
        self.seen.clear()
        self.together, self._ahead = together, 0
        self._streams.clear()

    def stream(
        self, transport: asyncio.Transport, tokens: int, tail: bytes, *, with_ids: bool
    ) -> None:
        """Write the first event of a stream; `received` writes the others."""
        role = frames.ROLE_WITH_IDS if with_ids else frames.ROLE
        words = frames.TOKENS_WITH_IDS if with_ids else frames.TOKENS
        chunks = (words[n % len(words)] for n in range(1, tokens - ENDS + 1))
        self._streams.append((transport, itertools.chain(chunks, [tail])))
        self._write(transport, frames.STREAM_HEAD + role + words[0])

    def received(self, events: int) -> None:
        """A client has so many more events."""
        self._ahead -= events
        if self._ahead or len(self._streams) < self.together:
            return
        streams, self._streams = self._streams, []
        for transport, rest in streams:
            if (chunk := next(rest, None)) is not None:
                self._streams.append((transport, rest))
                self._write(transport, chunk)

    def _write(self, transport: asyncio.Transport, data: bytes) -> None:
        self._ahead += _events(data)
        transport.write(data)


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
            with_ids = asked.get("return_token_ids") is True
            self._stage.stream(self._transport, tokens, tail, with_ids=with_ids)
        else:
            self._transport.write(frames.completion(prompt, tokens))


class Run:
    """A load: its clients, and how it went."""

    def __init__(self, stage: Stage, load: Load) -> None:
        self.stage, self.load = stage, load
        self._request = load.request()
        self._left = load.together
        stage.begin(load.together)

    async def connect(self, port: int) -> None:
        """Begin."""
        loop = asyncio.get_running_loop()
        for _ in range(self.load.together):
            await loop.create_connection(lambda: Client(self), "127.0.0.1", port)

    def request(self) -> bytes:
        """The bytes of the next request."""
        if self.load.is_new:
            return self.load.request(next(self.stage.prompts))
        return self._request

    def ended(self, failure: str | None) -> None:
        """A client has all its answers, or one that is wrong."""
        self._left -= 1
        if self._left == 0 or (failure is not None and self._left > 0):
            self._left = 0
            control.say("report", failure=failure, seen=self.stage.seen)


class Client(asyncio.Protocol):
    """One client: asks, reads the whole answer, and asks again."""

    def __init__(self, run: Run) -> None:
        self._run, self._load = run, run.load
        self._left = run.load.requests // run.load.together
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport
        self._reader = EventReader()
        self._events: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._ask()

    def _ask(self) -> None:
        self._reader = EventReader()
        self._events = []
        self._transport.write(self._run.request())

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        if self._load.stream and (new := self._reader.feed(data)):
            self._events += new
            self._run.stage.received(len(new))

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
        if not self._load.stream:
            return None
        events, expected = self._events, frames.stream_events(self._load.tokens, with_usage=True)
        if len(events) != expected or data_of(events[-1]) != DONE:
            return f"{len(events)} of {expected} events"
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._left:
            self._end("connection lost")

    def _end(self, failure: str | None) -> None:
        self._left = 0
        self._transport.close()
        self._run.ended(failure)


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
        task = loop.create_task(Run(stage, Load.decode(load)).connect(int(port)))
        started.add(task)
        task.add_done_callback(started.discard)

    control.listen(loop, hear)
    loop.run_forever()
