"""A DNS server on 127.0.0.1, over UDP and TCP: answers with the records that a test gives it."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import dns.asyncresolver
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

MOST_BYTES = 512
"""Of an answer over UDP; longer ones are cut, and come whole over TCP."""


class Server:
    """Records by name and type. A name without any does not exist."""

    def __init__(self) -> None:
        self.port = 0
        self.records: dict[tuple[str, str], tuple[str, ...]] = {}
        self.ttl = 5
        self.failure: str | None = None
        """SERVFAIL, or SILENCE: no answer at all."""
        self.failing_kinds: set[str] = set()
        """Types of records whose questions fail."""
        self.asked: list[tuple[str, str]] = []
        self.by_tcp = 0

    def put(self, name: str, kind: str, records: Iterable[str]) -> None:
        """The records of a name; none: it exists and has no such records."""
        self.records[name, kind] = tuple(records)

    def answer(self, data: bytes, *, limit: int) -> bytes | None:
        """The answer to a question."""
        question = dns.message.from_wire(data)
        [asked] = question.question
        name, kind = asked.name.to_text(omit_final_dot=True), dns.rdatatype.to_text(asked.rdtype)
        self.asked.append((name, kind))
        if self.failure == "SILENCE":
            return None
        answer = dns.message.make_response(question)
        if self.failure is not None:
            answer.set_rcode(dns.rcode.from_text(self.failure))
        elif kind in self.failing_kinds:
            answer.set_rcode(dns.rcode.SERVFAIL)
        elif not any(known == name for known, _ in self.records):
            answer.set_rcode(dns.rcode.NXDOMAIN)
        elif texts := self.records.get((name, kind)):
            answer.answer.append(dns.rrset.from_text(asked.name, self.ttl, "IN", kind, *texts))
        wire: bytes = answer.to_wire(max_size=65535)
        if len(wire) > limit:
            answer.answer.clear()
            answer.flags |= dns.flags.TC
            wire = answer.to_wire()
        return wire

    def resolver(self) -> dns.asyncresolver.Resolver:
        """A client of this server, without search domains."""
        found = dns.asyncresolver.Resolver(configure=False)
        found.port = self.port
        found.nameservers = ["127.0.0.1"]
        return found


class _Udp(asyncio.DatagramProtocol):
    def __init__(self, server: Server) -> None:
        self._server = server
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        answer = self._server.answer(data, limit=MOST_BYTES)
        if answer is not None:
            self._transport.sendto(answer, addr)


@asynccontextmanager
async def serving(server: Server) -> AsyncIterator[None]:
    """Listen on a free port."""

    async def on_tcp(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.by_tcp += 1
        # A stranger may ask on this port, whose last user another process still probes.
        with contextlib.suppress(asyncio.IncompleteReadError):
            [size] = struct.unpack("!H", await reader.readexactly(2))
            answer = server.answer(await reader.readexactly(size), limit=65535)
            if answer is not None:
                writer.write(struct.pack("!H", len(answer)) + answer)
                await writer.drain()
        writer.close()

    loop = asyncio.get_running_loop()
    tcp = await asyncio.start_server(on_tcp, "127.0.0.1", 0)
    server.port = tcp.sockets[0].getsockname()[1]
    udp, _ = await loop.create_datagram_endpoint(
        lambda: _Udp(server), local_addr=("127.0.0.1", server.port)
    )
    try:
        yield
    finally:
        udp.close()
        tcp.close()
        await tcp.wait_closed()
