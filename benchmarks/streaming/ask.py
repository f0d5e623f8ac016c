"""One streamed completion on a connection of its own, for loads of a few hundred clients."""

import asyncio

__all__ = ["NoAnswer", "ask"]


class NoAnswer(RuntimeError):
    """A refusal, or a stream that broke."""


async def ask(port: int, body: bytes, *headers: str) -> tuple[float, bytes]:
    """Seconds to the first event of a stream, and the whole answer.

    Raises NoAnswer. A cancelled request closes its connection.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    lines = (
        "POST /v1/completions HTTP/1.1",
        *("host: x", "connection: close", "content-type: application/json"),
        *(f"content-length: {len(body)}", *headers, "", ""),
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write("\r\n".join(lines).encode() + body)
        await reader.readuntil(b"data: ")
        first = loop.time() - began
        rest = await reader.read(-1)
    except asyncio.IncompleteReadError as error:
        raise NoAnswer(f"no stream: {error.partial[-200:]!r}") from None
    finally:
        writer.transport.abort()
    if b"[DONE]" not in rest:
        raise NoAnswer(f"an answer was not whole: {rest[-200:]!r}")
    return first, rest
