"""A client connection, with events in an order that sockets seldom show."""

import asyncio
from typing import Any

import pytest

from router.core.limits.budgets import ByteBudget
from router.net.client.client_connection import (
    BODY,
    HEAD_SECONDS,
    LINGER,
    LINGER_SECONDS,
    NEVER,
    ClientConnection,
)
from router.net.client.client_request import ClientRequest, RequestHead
from router.net.known_heads import KnownHeads
from router.net.limits.read_limiter import ReadLimiter
from tests.net.client import request
from tests.net.payloads import COMPLETIONS, completion
from tests.net.wire import Silent, Wire


class Handler:
    """Takes requests; `begun` are the started ones."""

    body_seconds = stall_seconds = keep_alive_seconds = 100.0
    path_prefix = b""

    def __init__(self) -> None:
        self.begun: list[ClientRequest] = []
        self.known_heads: KnownHeads[RequestHead] = KnownHeads(1)
        self.read_limiter = ReadLimiter(1 << 40)
        self.answer_budget = ByteBudget(1 << 40)

    def on_request(self, connection: ClientConnection, request: ClientRequest) -> None:
        self.begun.append(request)
        request.listener = Silent()


class Readable(Wire):
    """A transport that knows whether it is read."""

    is_read = True
    is_aborted = False
    unsent = 0

    def abort(self) -> None:
        self.is_aborted = self.is_closed = True

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def pause_reading(self) -> None:
        assert self.is_read
        self.is_read = False

    def resume_reading(self) -> None:
        assert not self.is_read
        self.is_read = True

    def can_write_eof(self) -> bool:
        return False


class HalfClosing(Readable):
    """A transport without TLS: its sending side can be closed alone, and then not be written to."""

    is_ended = False

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.is_ended = True

    def write(self, data: bytes) -> None:
        assert not self.is_ended
        super().write(data)


def _connected(wire: Readable | None = None) -> tuple[ClientConnection, Handler, Any]:
    handler, wire = Handler(), wire or Readable()
    connection = ClientConnection(handler, set(), asyncio.get_running_loop())
    connection.connection_made(wire)  # type: ignore[arg-type]
    return connection, handler, wire


async def test_a_request_refused_before_its_turn_comes_is_not_begun() -> None:
    connection, handler, wire = _connected()
    good = request(COMPLETIONS, completion())
    chunked = request(COMPLETIONS, b"2\r\n{}\r\n", (b"transfer-encoding", b"chunked"))
    connection.data_received(good + chunked)
    (first,) = handler.begun
    connection.response.start(200, b"", 0)
    connection.end_response()  # the next one's turn comes in the next turn of the loop
    connection.data_received(b"ZZZ\r\n")
    await asyncio.sleep(0)
    assert handler.begun == [first]
    assert wire.written.count(b"HTTP/1.1") == 2
    assert wire.written.count(b"HTTP/1.1 400") == 1


async def test_a_client_that_half_closes_has_left_though_it_has_not_read_all() -> None:
    connection, handler, wire = _connected()
    connection.data_received(request(COMPLETIONS, completion()))
    left: list[bool] = []
    listener = handler.begun[0].listener
    assert isinstance(listener, Silent)
    listener.on_disconnect = lambda: left.append(True)  # type: ignore[method-assign]
    connection.response.start(200, b"", 10)
    wire.unsent = 5
    connection.eof_received()
    wire.close()  # as the event loop does, which waits for what is not sent
    assert left == [True]
    assert connection.deadline < NEVER
    wire.is_aborted = False
    connection.on_deadline()
    assert wire.is_aborted


NOT_HTTP = b"GET / HTTP/1.1\r\nthis is no header\r\n\r\n"


async def test_a_refused_client_may_read_its_answers_and_is_not_answered_again() -> None:
    """A write to what is closed would end the sweep that looks after all other connections too."""
    connection, handler, wire = _connected(HalfClosing())
    connection.data_received(request(COMPLETIONS, completion()))
    connection.response.start(200, b"", 0)
    connection.pause_writing()
    connection.end_response()
    connection.data_received(NOT_HTTP)
    assert wire.is_ended
    assert connection.deadline > connection.loop.time() + LINGER_SECONDS  # of the reader
    connection.resume_writing()
    assert connection.deadline <= connection.loop.time() + LINGER_SECONDS
    connection.on_deadline()
    assert wire.is_closed
    assert wire.written.count(b"HTTP/1.1") == 2
    assert len(handler.begun) == 1


async def test_an_answer_survives_invalid_http_of_its_client() -> None:
    """A close while bytes come in resets the connection, with all that the client has not read."""
    connection, _, wire = _connected(HalfClosing())
    connection.data_received(request(COMPLETIONS, completion()) + NOT_HTTP)
    connection.response.start(200, b"", 0)
    connection.end_response()
    assert wire.is_ended
    assert not wire.is_closed
    connection.on_deadline()
    assert wire.is_closed


async def test_no_request_starts_after_an_answer_with_connection_close() -> None:
    connection, handler, wire = _connected(HalfClosing())
    connection.data_received(request(COMPLETIONS, completion()) * 2)
    connection.drain()
    connection.data_received(NOT_HTTP)
    connection.response.start(200, b"", 0)
    connection.pause_writing()
    connection.end_response()
    assert wire.is_ended
    connection.resume_writing()
    assert len(handler.begun) == 1


@pytest.mark.parametrize("ends", ["shutdown", "on_deadline"])
async def test_a_client_that_leaves_the_connection_half_closed_is_cut_off(ends: str) -> None:
    """With TLS a close waits for the client's answer, for half a minute if it were left to asyncio:
    the router's end would wait as long."""
    connection, _, wire = _connected()
    connection.data_received(request(COMPLETIONS, completion()))
    connection.response.start(200, b"", 0)
    connection.end_response()
    getattr(connection, ends)()
    assert wire.is_closing()
    assert not wire.is_aborted
    assert connection.deadline <= connection.loop.time() + LINGER_SECONDS
    connection.on_deadline()
    assert wire.is_aborted


async def test_all_pauses_must_end_before_reading_resumes() -> None:
    """Else a client that sends many requests at once would fill the memory, turn by turn."""
    connection, _, wire = _connected()
    connection.data_received(request(COMPLETIONS, completion()))
    connection.data_received(request(COMPLETIONS, completion()) * 20)  # too many at once
    assert not wire.is_read
    connection.wait_for_turn()
    connection.read_on(b"")
    assert not wire.is_read
    connection.wait_for_turn()
    for _ in range(21):
        connection.response.start(200, b"", 0)
        connection.end_response()
        await asyncio.sleep(0)
    assert not wire.is_read
    connection.read_on(b"")
    assert wire.is_read


async def test_a_connection_paused_during_its_wait_is_paused_once() -> None:
    connection, _, wire = _connected()
    connection.wait_for_turn()
    connection.pause_reading()
    connection.read_on(b"")
    assert not wire.is_read
    connection.resume_reading()
    assert wire.is_read


async def test_held_back_input_of_a_closed_connection_is_dropped() -> None:
    connection, handler, wire = _connected()
    connection.wait_for_turn()
    wire.abort()
    connection.read_on(request(COMPLETIONS, completion()))
    assert handler.begun == []
    assert not wire.is_read


async def test_a_client_that_has_done_its_part_is_not_timed() -> None:
    """However long the answer takes."""
    connection, _, _ = _connected()
    whole = request(COMPLETIONS, completion())
    connection.data_received(whole[:-1])
    assert connection.deadline > connection.loop.time() + HEAD_SECONDS  # of the body, not the head
    connection.data_received(whole[-1:])
    assert connection.deadline == NEVER
    connection.pause_writing()
    assert connection.deadline < NEVER
    connection.resume_writing()
    assert connection.deadline == NEVER


async def test_a_request_in_one_read_is_not_timed() -> None:
    connection, _, _ = _connected()
    assert connection.deadline < NEVER
    connection.data_received(request(COMPLETIONS, completion()))
    assert connection.deadline == NEVER


async def test_lateness_is_logged_once() -> None:
    connection, _, _ = _connected()
    connection.data_received(request(COMPLETIONS, completion())[:-1])
    connection.on_deadline()
    assert connection.deadline == NEVER  # `Silent` has not even answered


@pytest.mark.parametrize("comes_first", [True, False])
async def test_a_body_is_timed_again_when_the_client_has_read(*, comes_first: bool) -> None:
    connection, _, _ = _connected()
    part = request(COMPLETIONS, completion())[:-1]
    if comes_first:
        connection.data_received(part)
        connection.pause_writing()
    else:
        connection.pause_writing()
        connection.data_received(part)
    assert connection._awaited == LINGER
    connection.resume_writing()
    assert connection.deadline < NEVER
    assert connection._awaited == BODY


async def test_a_response_to_head_has_no_body_even_if_its_length_is_not_known() -> None:
    connection, _, wire = _connected()
    connection.data_received(request("/health", None, method="HEAD"))
    connection.response.start(200, b"", None)
    connection.response.write(b"body")
    connection.end_response()
    head, _, body = wire.written.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert body == b""


async def test_a_response_is_not_held_back_because_the_one_before_it_was() -> None:
    """The last piece of a body is kept for the end of its response only."""
    connection, _, wire = _connected()
    connection.data_received(request("/health", None, method="GET"))
    connection.response.start(200, b"", None)
    connection.response.is_corked = True
    connection.response.write(b"first")
    connection.end_response()
    connection.data_received(request("/health", None, method="GET"))
    connection.response.start(200, b"", None)
    connection.response.write(b"second")
    assert wire.written.endswith(b"6\r\nsecond\r\n")


async def test_whole_chunks_are_written_as_they_stand_only_behind_a_head() -> None:
    connection, _, _ = _connected()
    connection.data_received(request("/health", None, method="GET"))
    connection.response.start(200, b"", None)
    assert connection.response.chunk_transport() is None
    connection.response.write(b"first")
    assert connection.response.chunk_transport() is not None


async def test_much_that_is_no_http_in_one_read_is_refused_once() -> None:
    connection, handler, wire = _connected()
    connection.data_received(b"\x00" * 100_000)
    assert wire.written.count(b"HTTP/1.1") == 1
    assert wire.written.startswith(b"HTTP/1.1 400 ")
    assert handler.begun == []
