import asyncio

import pytest

from benchmarks.streaming.ask import NoAnswer, ask

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
STREAM = HEAD + b"data: {}\n\ndata: [DONE]\n\n"
REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\n{}"


async def answered(reply: bytes) -> tuple[float, bytes]:
    """The outcome at a server that replies so."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"\r\nauthorization: Bearer a\r\n" in head
        assert await reader.readexactly(2) == b"{}"
        writer.write(reply)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        return await ask(server.sockets[0].getsockname()[1], b"{}", "authorization: Bearer a")


async def test_a_stream_is_read_to_its_end() -> None:
    first, rest = await answered(STREAM)
    assert first > 0.0
    assert rest.endswith(b"[DONE]\n\n")


@pytest.mark.parametrize("reply", [REFUSAL, HEAD, HEAD + b"data: {}\n\n"])
async def test_a_refusal_and_a_broken_stream_are_no_answers(reply: bytes) -> None:
    with pytest.raises(NoAnswer):
        await answered(reply)
