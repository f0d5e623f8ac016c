"""An engine that answers with an event of 70 bytes each 20 ms until the client disconnects; the
text is the time of sending. With `x-large` it sends an event of 8 kB each second.

`python -m benchmarks.overload.engine PORT`
"""

import asyncio
import sys
import time

import uvloop

STEP_SECONDS = {False: 0.02, True: 1.0}
EVENT = b'data: {"choices":[{"index":0,"text":"%b"}]}\n\n'
LARGE = EVENT % (b"x" * 8_000)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
MODELS = b'{"object":"list","data":[{"id":"m","object":"model"}]}'


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One connection."""
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            lines = head.lower().split(b"\r\n")
            length = next((int(x[15:]) for x in lines if x.startswith(b"content-length:")), 0)
            while length:
                length -= len(await reader.read(min(length, 1 << 18)))
            if head.startswith(b"POST"):
                await _stream(writer, is_large=b"x-large: 1" in lines)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(MODELS) + MODELS)
    except (OSError, asyncio.IncompleteReadError):
        writer.close()


async def _stream(writer: asyncio.StreamWriter, *, is_large: bool) -> None:
    writer.write(HEAD)
    while True:
        writer.write(_chunk(LARGE if is_large else EVENT % b"%d" % time.time_ns()))
        await writer.drain()
        await asyncio.sleep(STEP_SECONDS[is_large])


async def main(port: int) -> None:
    """Until it is killed."""
    server = await asyncio.start_server(serve, "127.0.0.1", port, limit=1 << 18, backlog=4096)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
