import asyncio

import pytest

from benchmarks.gate.endpoint.control_client import ControlClient, Unanswered, control_client
from tests.benchmarks.gate.listening import listening


async def refusal(asked: ControlClient, **more: float) -> str:
    with pytest.raises(Unanswered) as refused:
        await asked.endpoint("/x", **{"timeout": 60.0, **more})  # type: ignore[arg-type]
    return str(refused.value)


class Server:
    """Answers every request with these bytes, or never."""

    def __init__(self, answer: bytes | None) -> None:
        self.answer = answer
        self.heads: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.heads.append(await reader.readuntil(b"\r\n\r\n"))
            if self.answer is None:
                await reader.read()
            else:
                writer.write(self.answer)
        finally:
            writer.close()


@pytest.mark.usefixtures("calm")
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "no answer within 0.1 s"),
        (b"", "ServerDisconnectedError"),
        (b"nonsense\r\n\r\n", "no HTTP: Bad status line"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc", "ClientPayloadError"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n" + b"a" * 99, "larger than 50 bytes"),
    ],
)
async def test_one_reason_without_the_key(answer: bytes | None, words: str) -> None:
    server = Server(answer)
    async with (
        listening(server.serve) as port,
        control_client(f"http://127.0.0.1:{port}", {"Authorization": "Bearer s3cr3t"}) as asked,
    ):
        said = await refusal(asked, timeout=0.1, limit=50)
    assert words in said
    assert "s3cr3t" not in said
    assert b"Authorization: Bearer s3cr3t" in server.heads[0]


async def test_workers_are_never_sent_the_key() -> None:
    server = Server(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
    key = {"Authorization": "Bearer s3cr3t"}
    async with listening(server.serve) as port, control_client("http://h:9", key) as asked:
        answer = await asked.worker(f"http://127.0.0.1:{port}/metrics", timeout=60.0)
    assert (answer.status, answer.json()) == (200, {})
    assert b"s3cr3t" not in server.heads[0]


async def test_an_unreserved_address_cannot_be_connected_to() -> None:
    async with control_client("http://127.0.0.1:9", {}) as asked:
        assert await refusal(asked) == "cannot connect: Connection refused"
