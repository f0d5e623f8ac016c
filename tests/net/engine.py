"""An engine whose every byte a test controls.

It parses requests with h11, which is stricter than the router's own parser, and answers nothing by
itself but the probes. A test takes each request from `call()` and sends what it likes.
"""

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable
from typing import Any

import h11
import orjson

__all__ = ["Call", "Connection", "Reply", "ScriptedEngine", "chunk", "json_reply", "sse_head"]

SECONDS = 60.0
"""A deadline for what happens at once: only a test that fails meets it."""

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: close with a reset."""

Reply = bytes
"""An answer, head and body, as bytes."""

Headers = list[tuple[bytes, bytes]]


def chunk(data: bytes) -> bytes:
    """A piece of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"


def sse_head(*lines: bytes, status: int = 200) -> bytes:
    """The head of an event stream, as vLLM sends it."""
    head = (
        b"HTTP/1.1 %d OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
        b"transfer-encoding: chunked\r\n"
    ) % status
    return head + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


def json_reply(document: Any, status: int = 200, *lines: bytes) -> Reply:
    """A whole JSON answer."""
    body = document if isinstance(document, bytes) else orjson.dumps(document)
    more = b"".join(line + b"\r\n" for line in lines)
    return (
        b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n%b"
    ) % (status, more, len(body), body)


class Call:
    """One request that reached the engine, and the hand on its answer."""

    def __init__(self, connection: "Connection", request: h11.Request) -> None:
        self.connection = connection
        self.method: bytes = request.method
        self.target: bytes = request.target
        self.headers: Headers = list(request.headers)
        self.body = b""
        self.whole = asyncio.Event()

    def values(self, name: bytes) -> list[bytes]:
        """All values of a header."""
        return [value for key, value in self.headers if key == name]

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return orjson.loads(self.body)

    def send(self, *data: bytes) -> None:
        """Send these bytes and nothing else."""
        self.connection.transport.write(b"".join(data))

    def stream(self, *data: bytes) -> None:
        """Begin an event stream with these events, each in a chunk of its own."""
        self.send(sse_head(), *map(chunk, data))

    def stream_whole(self, *data: bytes) -> None:
        """Send an event stream of these events, and end it."""
        self.stream(*data)
        self.end()

    def events(self, *data: bytes) -> None:
        """Go on with it."""
        self.send(*map(chunk, data))

    def end(self, *data: bytes) -> None:
        """End a chunked body, after these events if there are any."""
        if data:
            self.events(*data)
        self.send(LAST_CHUNK)

    def close(self) -> None:
        """Close the connection when all is sent."""
        self.connection.transport.close()

    def reset(self) -> None:
        """Reset the connection; what was sent may be lost."""
        self.connection.reset()

    async def left(self) -> None:
        """Wait until the router has closed the connection."""
        async with asyncio.timeout(SECONDS):
            await self.connection.closed.wait()

    async def read(self) -> bytes:
        """Wait for the whole body."""
        async with asyncio.timeout(SECONDS):
            await self.whole.wait()
        return self.body


class Connection(asyncio.Protocol):
    """A connection to the engine."""

    def __init__(self, engine: "ScriptedEngine") -> None:
        self._engine = engine
        self._parser = h11.Connection(h11.SERVER)
        self._call: Call | None = None
        self.calls = 0
        self.received = 0
        self.transport: asyncio.Transport
        self.closed = asyncio.Event()
        self.error: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self._engine.connections.append(self)
        self._engine.on_connect(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._engine.connections.remove(self)
        self.error = exc
        self.closed.set()

    def reset(self) -> None:
        self.transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, RESET
        )
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        self._parser.receive_data(data)
        while True:
            event = self._parser.next_event()
            if event is h11.NEED_DATA or event is h11.PAUSED:
                return
            self._take(event)

    def _take(self, event: Any) -> None:
        match event:
            case h11.Request():
                self._call = Call(self, event)
                if not self._engine.probed(self._call):
                    self.calls += 1
                    self._engine.arrived(self._call)
            case h11.Data():
                assert self._call is not None
                self._call.body += event.data
            case h11.EndOfMessage():
                assert self._call is not None
                self._call.whole.set()
                rest, _ = self._parser.trailing_data
                self._parser = h11.Connection(h11.SERVER)
                if rest:  # h11 takes nothing for the end
                    self._parser.receive_data(rest)


class ScriptedEngine:
    """Listens on a port of its own, which it keeps while it refuses connections."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.tls = tls
        self._place = self._bind()
        self.port: int = self._place.getsockname()[1]
        self._listener: asyncio.Server | None = None
        self._calls: asyncio.Queue[Call] = asyncio.Queue()
        self._script: Callable[[Call], None] | None = None
        self.connections: list[Connection] = []
        self.on_connect: Callable[[Connection], None] = lambda connection: None
        self.on_call: Callable[[Call], None] = lambda call: None
        self.health = json_reply(b"")
        self.models = _models("m")
        self.version = json_reply({"version": "0.32.0"})
        self.metrics = _text(b"vllm:num_requests_running 0.0\n")
        self.prometheus = self.is_sleeping = json_reply({"detail": "Not Found"}, 404)
        self.query: Reply | None = None
        """Its answer as a bootstrap server of Mooncake; None: a test takes the request."""
        self.probes: list[bytes] = []
        self.seen = 0

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def serve_model(self, *names: str) -> None:
        """List these in /v1/models."""
        self.models = _models(*names)

    async def listen(self) -> None:
        """Accept connections."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            lambda: Connection(self), sock=self._bind(self.port), ssl=self.tls
        )

    def refuse(self) -> None:
        """Refuse new connections; those that are open stay."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def drop(self) -> None:
        """Close all connections."""
        for connection in list(self.connections):
            connection.transport.abort()

    def stop(self) -> None:
        """Refuse and drop, and give the port back."""
        self.refuse()
        self.drop()
        self._place.close()

    def answer_all(self, script: Callable[[Call], None] | None) -> None:
        """Let `script` answer each request that no test has taken, as soon as its body is whole;
        None: `call` gives them."""
        self._script = script
        for _ in range(self._calls.qsize() if script else 0):
            self._give(self._calls.get_nowait())

    async def call(self, *, whole: bool = True) -> Call:
        """The next request, with its body unless `whole` is false."""
        async with asyncio.timeout(SECONDS):
            call = await self._calls.get()
            if whole:
                await call.whole.wait()
        return call

    @property
    def waiting(self) -> int:
        """Requests that no test has taken."""
        return self._calls.qsize()

    def arrived(self, call: Call) -> None:
        """A request that is no probe."""
        self.seen += 1
        self.on_call(call)
        self._give(call)

    def _give(self, call: Call) -> None:
        """To the script or the test."""
        if self._script is None:
            self._calls.put_nowait(call)
        else:
            asyncio.ensure_future(self._play(call, self._script))  # noqa: RUF006 - ends with it

    async def _play(self, call: Call, script: Callable[[Call], None]) -> None:
        await call.whole.wait()
        if not call.connection.closed.is_set():
            script(call)

    def probed(self, call: Call) -> bool:
        """Answer the router's probes."""
        answers = {
            b"/health": self.health,
            b"/v1/models": self.models,
            b"/version": self.version,
            b"/metrics": self.metrics,
            b"/prometheus/metrics": self.prometheus,
            b"/is_sleeping": self.is_sleeping,
        }
        if self.query is not None:
            answers[b"/query"] = self.query
        path = call.target.partition(b"/?")[0]  # a scrape selects what it reads
        if call.method != b"GET" or path not in answers:
            return False
        self.probes.append(path)
        call.send(answers[path])
        return True

    def _bind(self, port: int = 0) -> socket.socket:
        place = socket.socket()
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind(("127.0.0.1", port))
        place.setblocking(False)
        return place


def _models(*names: str) -> Reply:
    return json_reply({"object": "list", "data": [{"id": n, "object": "model"} for n in names]})


def _text(body: bytes) -> Reply:
    return b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n%b" % (
        len(body),
        body,
    )
