"""A client with every byte controlled by a test; it accepts only strict HTTP."""

import asyncio
import socket
import ssl
from typing import Any

import h11
import orjson

__all__ = ["JSON", "Answer", "Client", "Truncated", "request"]

SECONDS = 60.0
"""A deadline for what happens at once: only a test that fails meets it."""

JSON = (b"content-type", b"application/json")

Headers = list[tuple[bytes, bytes]]


class Truncated(Exception):
    """The connection ended in the middle of an answer, or before it."""


def request(
    path: str,
    body: object = None,
    *headers: tuple[bytes, bytes],
    method: str = "POST",
    version: str = "1.1",
) -> bytes:
    """A request's bytes. A body that is not bytes becomes JSON; None is no body at all."""
    lines = [b"%b %b HTTP/%b" % (method.encode(), path.encode(), version.encode()), b"host: test"]
    if body is None:
        raw = b""
    else:
        raw = body if isinstance(body, bytes) else orjson.dumps(body)
        names = {name for name, _ in headers}
        if b"content-type" not in names:
            lines.append(b"%b: %b" % JSON)
        if b"transfer-encoding" not in names and b"content-length" not in names:
            lines.append(b"content-length: %d" % len(raw))
    lines += [b"%b: %b" % pair for pair in headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + raw


class Answer:
    """One answer, read piece by piece."""

    def __init__(self, client: "Client", parser: h11.Connection, head: Any) -> None:
        self._client = client
        self._parser = parser
        self.status: int = head.status_code
        self.headers: Headers = list(head.headers)
        self.version: bytes = head.http_version
        self._body = bytearray()
        self.is_over = False

    def __repr__(self) -> str:
        return f"<Answer {self.status} {self.headers} {self.body[:400]!r}>"

    def values(self, name: bytes) -> list[bytes]:
        """All values of a header."""
        return [value for key, value in self.headers if key == name]

    @property
    def body(self) -> bytes:
        """What has come so far."""
        return bytes(self._body)

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return orjson.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error in OpenAI's shape, with all its members and the true status."""
        assert self.values(b"content-type") == [b"application/json"], self
        error: dict[str, Any] = self.json["error"]
        assert set(self.json) == {"error"}
        assert set(error) == {"message", "type", "param", "code"}, error
        assert error["code"] == self.status
        assert error["message"]
        return error

    @property
    def anthropic_error(self) -> dict[str, Any]:
        """The error in Anthropic's shape, with the request's id where it has one."""
        assert self.values(b"content-type") == [b"application/json"], self
        ids = [request_id.decode() for request_id in self.values(b"x-request-id")]
        assert self.json.get("type") == "error", self
        assert [self.json["request_id"]] == ids if ids else "request_id" not in self.json
        error: dict[str, Any] = self.json["error"]
        assert set(error) == {"type", "message"}, error
        assert error["message"]
        return error

    async def more(self) -> None:
        """Read until there is more, or the end."""
        before = len(self._body)
        while not self.is_over and len(self._body) == before:
            event = await self._client.event(self._parser)
            if isinstance(event, h11.Data):
                self._body += event.data
            else:
                assert isinstance(event, h11.EndOfMessage), event
                assert not list(event.headers)
                self._client.put_back(self._parser)
                self.is_over = True

    async def until(self, text: bytes) -> "Answer":
        """Read until the body so far ends with `text`."""
        while not self._body.endswith(text):
            assert not self.is_over, self
            await self.more()
        return self

    async def rest(self) -> "Answer":
        """Read to the end."""
        while not self.is_over:
            await self.more()
        return self


class Client:
    """A connection to the router."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._left = b""
        self.interim: list[int] = []

    @classmethod
    async def open(
        cls,
        port: int,
        *,
        host: str = "127.0.0.1",
        receive_buffer: int | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> "Client":
        """Connect; a small `receive_buffer` makes a client that takes little when it reads not."""
        sock = socket.socket()
        sock.setblocking(False)
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        try:
            await asyncio.get_running_loop().sock_connect(sock, (host, port))
        except OSError:
            sock.close()
            raise
        limit = receive_buffer or 1 << 16
        name = None if tls is None else "127.0.0.1"
        return cls(
            *await asyncio.open_connection(sock=sock, limit=limit, ssl=tls, server_hostname=name)
        )

    async def send(self, data: bytes) -> None:
        """Send these bytes and nothing else."""
        self.writer.write(data)
        async with asyncio.timeout(SECONDS):
            await self.writer.drain()
            await asyncio.sleep(0)  # the loop turns, even if all was sent at once

    async def ask(self, path: str, body: object = None, *headers: tuple[bytes, bytes]) -> Answer:
        """POST, and read the whole answer."""
        await self.send(request(path, body, *headers))
        return await self.answer()

    async def get(self, path: str, method: str = "GET") -> Answer:
        """Ask without a body, and read the whole answer."""
        await self.send(request(path, method=method))
        return await self.answer(method)

    async def begin(self, method: str = "POST") -> Answer:
        """Read an answer's head."""
        parser = h11.Connection(h11.CLIENT)
        parser.send(h11.Request(method=method, target="/", headers=[("host", "test")]))
        parser.send(h11.EndOfMessage())
        if self._left:
            parser.receive_data(self._left)
            self._left = b""
        while True:
            event = await self.event(parser)
            if isinstance(event, h11.InformationalResponse):
                self.interim.append(event.status_code)
                continue
            assert isinstance(event, h11.Response), event
            return Answer(self, parser, event)

    async def answer(self, method: str = "POST") -> Answer:
        """Read a whole answer."""
        return await (await self.begin(method)).rest()

    async def ended(self) -> bytes:
        """Read until the router closes the connection; returns all bytes before."""
        async with asyncio.timeout(SECONDS):
            return self._left + await self.reader.read()

    def leave(self) -> None:
        """Close at once."""
        self.writer.transport.abort()

    def hang_up(self) -> None:
        """Close as a browser does: with a FIN."""
        self.writer.close()

    async def event(self, parser: h11.Connection) -> Any:
        """The parser's next event."""
        while True:
            event = parser.next_event()
            if event is not h11.NEED_DATA:
                return event
            async with asyncio.timeout(SECONDS):
                try:
                    data = await self.reader.read(1 << 16)
                except ConnectionError as error:
                    raise Truncated(str(error)) from None
            if not data and parser.their_state is h11.SEND_RESPONSE:
                raise Truncated("no answer")
            try:
                parser.receive_data(data)
                if not data:
                    return parser.next_event()
            except h11.RemoteProtocolError as error:
                raise Truncated(str(error)) from None

    def put_back(self, parser: h11.Connection) -> None:
        """What came behind an answer belongs to the next one."""
        self._left, _ = parser.trailing_data
