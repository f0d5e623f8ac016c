"""Clients that do harm: `python -m benchmarks.overload.attack bodies|readers PORT NUMBER`."""

import asyncio
import os
import socket
import sys
from collections import Counter

import uvloop

BODY_BYTES = 16 << 20
PIECE_BYTES = 256 << 10

TEXT = b'{"model":"m","stream":true,"prompt":"' + b"x" * (BODY_BYTES - 39) + b'"}'
MESSAGE = b'{"role":"user","content":"hello there"},'
MESSAGES = b'{"model":"m","messages":[' + MESSAGE * (BODY_BYTES // len(MESSAGE) - 1) + b"{}]}"
NICENESS = 19
"""Real clients are on other machines: these take no processor from the router."""

STAY_SECONDS = 35.0
"""Of clients that do not read; long enough to fill their buffers."""

SPREAD_SECONDS = 10.0
"""In which they come."""


def _head(path: str, *lines: str) -> bytes:
    return "\r\n".join([f"POST {path} HTTP/1.1", "host: x", *lines, "", ""]).encode()


async def _send(writer: asyncio.StreamWriter, body: bytes, *, is_declared: bool) -> None:
    for start in range(0, len(body), PIECE_BYTES):
        piece = body[start : start + PIECE_BYTES]
        writer.write(piece if is_declared else b"%x\r\n%b\r\n" % (len(piece), piece))
        await writer.drain()
    if not is_declared:
        writer.write(b"0\r\n\r\n")


async def send_body(port: int, number: int) -> str:
    """One request; returns its status. Half of them do not say how large they are, half hold many
    small messages."""
    body, path = (TEXT, "/v1/completions") if number % 2 else (MESSAGES, "/v1/chat/completions")
    is_declared = number % 4 < 2
    length = f"content-length: {len(body)}" if is_declared else "transfer-encoding: chunked"
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(_head(path, length))
        sending = asyncio.ensure_future(_send(writer, body, is_declared=is_declared))
        head = await reader.readuntil(b"\r\n")
        sending.cancel()
        writer.transport.abort()
        return head.split()[1].decode()
    except (OSError, asyncio.IncompleteReadError) as error:
        return type(error).__name__


async def do_not_read(port: int, number: int) -> str:
    """A stream that its client, with a small buffer, does not read."""
    await asyncio.sleep(number % 1000 / 1000 * SPREAD_SECONDS)
    sock = socket.socket()
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    body = b'{"model":"m","stream":true,"prompt":"x"}'
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, ("127.0.0.1", port))
    head = _head("/v1/completions", f"content-length: {len(body)}", "x-large: 1")
    await loop.sock_sendall(sock, head + body)
    status = (await loop.sock_recv(sock, 12)).split()
    await asyncio.sleep(STAY_SECONDS)
    sock.close()
    return status[1].decode() if len(status) > 1 else "nothing"


async def main(kind: str, port: int, number: int) -> None:
    """All at once; prints how they were answered."""
    attack = send_body if kind == "bodies" else do_not_read
    statuses = await asyncio.gather(*(attack(port, each) for each in range(number)))
    print(dict(Counter(statuses)), flush=True)


if __name__ == "__main__":
    os.nice(NICENESS)
    uvloop.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
