from collections import Counter
from typing import Any

import orjson
import pytest

from benchmarks import frames
from benchmarks.engine import Connection, Engine, handover


class Transport:
    """Keeps what was written."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True


def connect(role: str = "decode") -> tuple[Engine, Connection, Transport]:
    engine = Engine(0, role, 0.01, Counter())
    connection, transport = Connection(engine), Transport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    return engine, connection, transport


def post(connection: Connection, body: dict[str, Any], path: str = "/v1/chat/completions") -> None:
    payload = orjson.dumps(body)
    head = f"POST {path} HTTP/1.1\r\nhost: e\r\ncontent-length: {len(payload)}\r\n\r\n"
    connection.data_received(head.encode() + payload)


STREAM: dict[str, Any] = {
    "max_tokens": 2,
    "stream": True,
    "stream_options": {"include_usage": True},
}


def test_a_stream_takes_a_step_per_token() -> None:
    engine, connection, transport = connect()
    post(connection, STREAM)
    assert transport.written == frames.STREAM_HEAD + frames.ROLE
    engine.step()
    assert not transport.written.endswith(frames.DONE)
    engine.step()
    assert transport.written.endswith(frames.DONE)
    assert engine.running == {}


def test_a_client_that_leaves_ends_its_stream() -> None:
    engine, connection, _transport = connect()
    post(connection, STREAM)
    connection.connection_lost(None)
    engine.step()
    assert (engine.running, engine.seen["aborted"]) == ({}, 1)


async def test_an_answer_without_a_stream_comes_whole() -> None:
    engine, connection, transport = connect()
    post(connection, {"max_tokens": 2})
    engine.step()
    assert transport.written == b""
    engine.finish(connection)
    assert b'"finish_reason":"length"' in transport.written
    engine.finish(connection)  # its timer, after the client has left


def test_a_prefill_engine_hands_over_when_asked_to() -> None:
    engine, connection, transport = connect("prefill")
    post(connection, {"max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}})
    body = orjson.loads(transport.written.partition(b"\r\n\r\n")[2])
    assert body["kv_transfer_params"]["remote_engine_id"] == "bench-prefill-0"
    post(connection, {"max_tokens": 1})
    assert b'"kv_transfer_params":null' in transport.written
    assert engine.seen["prefills"] == 2


def test_a_decode_engine_takes_the_handover() -> None:
    engine, connection, _transport = connect()
    post(connection, STREAM | {"kv_transfer_params": handover(3, 3000)})
    assert engine.seen == {"decodes with handover": 1}


@pytest.mark.parametrize(
    "change",
    [
        {"remote_block_ids": None},
        {"remote_block_ids": [[7, 9]]},
        {"remote_engine_id": "other"},
        {"do_remote_prefill": False},
    ],
)
def test_a_handover_that_was_changed_is_refused(change: dict[str, Any]) -> None:
    engine, connection, transport = connect()
    post(connection, STREAM | {"kv_transfer_params": handover(3, 3000) | change})
    assert transport.written.startswith(b"HTTP/1.1 400")
    assert engine.seen == {"bad handovers": 1}


@pytest.mark.parametrize("path", ["/health", "/metrics", "/v1/models", "/version"])
def test_what_routers_probe(path: str) -> None:
    _, connection, transport = connect()
    connection.data_received(f"GET {path}?x=1 HTTP/1.1\r\nhost: e\r\n\r\n".encode())
    assert transport.written.startswith(b"HTTP/1.1 200 OK")


def test_unknown_paths_and_what_is_not_http() -> None:
    _, connection, transport = connect()
    connection.data_received(b"GET /get_load HTTP/1.1\r\nhost: e\r\n\r\n")
    post(connection, {}, "/v1/other")
    assert transport.written.count(b"HTTP/1.1 404") == 2
    connection.data_received(b"\x00\x00\r\n\r\n")
    assert transport.closed
