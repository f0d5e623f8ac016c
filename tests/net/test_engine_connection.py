"""The engine's side without sockets: chunks that go around the parser, and those that do not."""

import asyncio
import itertools
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from router.core.values import Failure
from router.net.engine.answer import AnswerHead, Sink
from router.net.engine.engine_connection import EngineConnection
from router.net.known_heads import KnownHeads
from router.net.limits.read_limiter import ReadLimiter

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
EVENT = b'data: {"a":1}\n\n'


class Transport(asyncio.Transport):
    """Takes everything and does nothing."""

    is_open = True

    def writelines(self, list_of_data: Any) -> None:
        """Forget it."""

    def is_closing(self) -> bool:
        """Whether `abort` was called."""
        return not self.is_open

    def abort(self) -> None:
        """Close."""
        self.is_open = False

    def get_write_buffer_size(self) -> int:
        """All is sent."""
        return 0


class Noting(Sink):
    """Notes the body and the way that each piece of it came."""

    def __init__(self, takes_chunks: bool = True) -> None:
        self.takes_chunks = takes_chunks
        self.body = b""
        self.whole: list[bytes] = []
        self.ended: object = None
        self.head: object = None
        self.given: AnswerHead | None = None

    def on_head(self, head: AnswerHead, length: int | None, *, has_body: bool) -> None:
        """A head."""
        other = [pair for pair in head.headers if pair[0] != b"content-length"]
        self.head = head.status, other, length, has_body
        self.given = head

    def on_data(self, data: bytes, *, is_last: bool) -> None:
        """Parsed bytes."""
        self.body += data

    def on_chunk(self, chunk: bytes, size: int) -> bool:
        """A chunk with its framing."""
        is_taken = self.takes_chunks and chunk.endswith(b"\r\n")
        if is_taken:
            self.whole.append(chunk)
            start = chunk.index(b"\r\n") + 2
            assert len(chunk) == start + size + 2
            self.body += chunk[start : start + size]
        return is_taken

    def on_end(self) -> None:
        """All of it."""
        self.ended = True

    def on_lost(self, failure: Failure) -> None:
        """A broken answer."""
        self.ended = failure


class Pool:
    """An owner that notes how often a connection could be used again."""

    def __init__(self) -> None:
        self.known_heads: KnownHeads[AnswerHead] = KnownHeads(9)
        self.read_limiter = ReadLimiter(1 << 40)
        self.returned = 0

    def put(self, connection: EngineConnection) -> None:
        """Idle."""
        self.returned += 1

    def forget(self, connection: EngineConnection) -> None:
        """Closed."""


def answered(*reads: bytes, takes_chunks: bool = True, pool: Pool | None = None) -> Noting:
    """What the sink of a request gets from an engine's reads."""
    connection = EngineConnection(pool or Pool())
    connection.connection_made(Transport())
    sink = Noting(takes_chunks)
    connection.start(b"", b"", sink)
    for read in reads:
        connection.data_received(read)
    return sink


def chunk(data: bytes) -> bytes:
    """`data` framed as uvicorn does."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def test_a_read_that_is_one_chunk_goes_around_the_parser() -> None:
    sink = answered(HEAD + chunk(EVENT), chunk(EVENT), chunk(EVENT * 20), END)
    assert sink.whole == [chunk(EVENT), chunk(EVENT * 20)]
    assert sink.body == EVENT * 22
    assert sink.ended is True


def test_a_sink_that_does_not_take_it_gets_the_body() -> None:
    sink = answered(HEAD + chunk(EVENT), chunk(EVENT), END, takes_chunks=False)
    assert sink.body == EVENT * 2
    assert sink.ended is True


def test_a_sink_that_fails_at_the_end_gets_a_lost_answer() -> None:
    class Failing(Noting):
        def on_end(self) -> None:
            raise ZeroDivisionError

    connection = EngineConnection(Pool())
    connection.connection_made(Transport())
    sink = Failing()
    connection.start(b"", b"", sink)
    with pytest.raises(ZeroDivisionError):
        connection.data_received(HEAD + chunk(EVENT) + END)
    assert isinstance(sink.ended, Failure)


@pytest.mark.parametrize(
    "size", [b"0F", b"00f", b"F", b" f", b"f ", b"f;x=y", b"+f", b"0xf", b"0_f"]
)
def test_a_size_in_another_notation_uses_the_parser(size: bytes) -> None:
    assert len(EVENT) == 15
    sink = answered(HEAD + chunk(EVENT), size + b"\r\n" + EVENT + b"\r\n", END)
    assert sink.whole == []


@pytest.mark.parametrize("length", [21, 262])
@pytest.mark.parametrize("first", [b"?", b"??", b"1", b"\n"])
def test_a_read_of_a_length_that_no_chunk_has_is_no_chunk(length: int, first: bytes) -> None:
    """Whatever it begins and ends with: passed on as it is, it would break the client's framing."""
    read = (first + bytes(length))[: length - 6] + b"\r\n\n\n\r\n"
    assert len(read) == length
    sink = answered(HEAD + chunk(EVENT), read)
    assert sink.whole == []
    assert isinstance(sink.ended, Failure)


@pytest.mark.parametrize("begun", [b"f", b"f\r", b"f\r\n", b"f\r\ndata", b"0", b"0\r\n"])
def test_behind_a_begun_chunk_nothing_goes_around_the_parser(begun: bytes) -> None:
    sink = answered(HEAD + chunk(EVENT) + begun, chunk(EVENT))
    assert sink.whole == []


def test_a_connection_begins_each_answer_anew() -> None:
    connection = EngineConnection(Pool())
    connection.connection_made(Transport())
    connection.start(b"", b"", Noting())
    connection.data_received(HEAD + chunk(EVENT))
    connection.data_received(END)
    sink = Noting()
    connection.start(b"", b"", sink)
    connection.data_received(chunk(EVENT))
    assert sink.whole == []
    assert isinstance(sink.ended, Failure)


@examples(max_examples=100)
@given(
    payloads=st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=8),
    cuts=st.lists(st.integers(0, 3000), max_size=8),
    at_chunks=st.booleans(),
    takes_chunks=st.booleans(),
)
def test_however_it_is_cut_the_body_is_the_same(
    payloads: list[bytes], cuts: list[int], at_chunks: bool, takes_chunks: bool
) -> None:
    parts = [HEAD, *map(chunk, payloads), END]
    wire = b"".join(parts)
    ends = {sum(map(len, parts[:n])) for n in range(1, len(parts))} if at_chunks else set()
    places = sorted({0, len(wire)} | ends | {c for c in cuts if c < len(wire)})
    reads = [wire[a:b] for a, b in itertools.pairwise(places)]
    sink = answered(*reads, takes_chunks=takes_chunks)
    assert sink.body == b"".join(payloads)
    assert sink.ended is True


# Answers whose head is known.


def outcome(pool: Pool, data: bytes) -> tuple[object, ...]:
    """What becomes of an answer in one read, and whether its connection can be used again."""
    before = pool.returned
    sink = answered(data, pool=pool)
    ended = sink.ended if isinstance(sink.ended, bool | None) else sink.ended.kind  # type: ignore[attr-defined]
    return sink.head, sink.body, ended, pool.returned - before


LINES = st.sampled_from(
    [
        *(b"date: today", b"Content-Length: 3", b"content-length: 03", b"content-length: +3"),
        *(b"CONTENT-LENGTH: 3", b"content-length:3", b" content-length: 3", b"x: \x00", b"x\n"),
        *(b"transfer-encoding: chunked", b"connection: close", b"upgrade: h2c", b"", b"no colon"),
        *(b"x-strength: 3", b"content-l: 3", b" 3"),
    ]
)
STARTS = st.sampled_from(
    [
        *(b"HTTP/1.1 200 OK", b"HTTP/1.0 200 OK", b"HTTP/1.1 103 Early", b"HTTP/1.1 204 None"),
        *(b"HTTP/1.1 304 Same", b"HTTP/1.1 100 Go on\r\n\r\nHTTP/1.1 200 OK", b"HTTP/2 200 OK"),
    ]
)


@given(
    STARTS,
    st.lists(LINES, max_size=3),
    st.sampled_from([b"\r\n", b"\r\n", b"\n"]),
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from([b"", b"a", b"abc", b"\r\n\r"]))),
)
@example(b"HTTP/1.1 204 None", [], b"\r\n", [(3, b"\r\n\r")])  # line ends, which are skipped
@examples(max_examples=100)
def test_a_known_head_is_equal_to_its_parse(
    start: bytes, lines: list[bytes], end: bytes, answers: list[tuple[int, bytes]]
) -> None:
    warm = Pool()
    for length, body in [*answers, *answers]:
        head = [start, *lines, b"content-length: %d" % length, b"", b""]
        assert outcome(warm, end.join(head) + body) == outcome(Pool(), end.join(head) + body)


@given(
    STARTS,
    st.lists(LINES, max_size=3),
    st.sampled_from([b"transfer-encoding: chunked", b"Transfer-Encoding:chunked", b"a: b"]),
    st.sampled_from([b"\r\n", b"\r\n", b"\n"]),
    st.lists(st.binary(min_size=1, max_size=20) | st.just(b"\r\n\r\n"), max_size=3),
    st.sampled_from([b"", END, b"0\r\na: b\r\n\r\n", END + b"HTTP/1.1 200 OK\r\n", b"x"]),
)
@example(b"HTTP/1.1 200 OK", [], b"transfer-encoding: chunked", b"\n", [b"\r\n\r\n"], END)
@examples(max_examples=100)
def test_chunks_after_a_known_head_are_equal_to_their_parse(
    start: bytes, lines: list[bytes], coding: bytes, end: bytes, chunks: list[bytes], rest: bytes
) -> None:
    warm = Pool()
    head = end.join([start, *lines, coding, b"", b""])
    for sent in (chunks, chunks, chunks[::-1], []):
        data = head + b"".join(map(chunk, sent)) + rest
        assert outcome(warm, data) == outcome(Pool(), data)


def test_answers_in_chunks_that_begin_alike_share_a_head() -> None:
    pool = Pool()
    first, second = (answered(HEAD + chunk(EVENT), END, pool=pool) for _ in range(2))
    assert first.given is second.given
    assert first.body == second.body == EVENT
    assert pool.returned == 2


def answer(body: bytes) -> bytes:
    """A whole one."""
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def test_an_answer_with_a_known_head_is_not_parsed() -> None:
    pool, sink = Pool(), Noting()
    answered(answer(b"a"), pool=pool)
    connection = EngineConnection(pool)
    connection.connection_made(Transport())
    connection._parser = None
    connection.start(b"", b"", sink)
    connection.data_received(answer(b"bcd" * 100))
    assert sink.body == b"bcd" * 100
    assert sink.head == (200, [], 300, True)
    assert sink.ended is True
    assert pool.returned == 2


def test_a_whole_answer_behind_a_begun_one_is_left_to_the_parser() -> None:
    pool = Pool()
    answered(answer(b"a"), pool=pool)
    start = b"HTTP/1.1 200 OK\r\nx: "
    assert answered(start, answer(b"abc"), pool=pool).head == (
        *(200, [(b"x", b"HTTP/1.1 200 OK")]),
        *(3, True),
    )


@pytest.mark.parametrize("method", ["on_head", "on_data"])
def test_a_sink_that_gives_up_gets_no_more_of_an_answer_with_a_known_head(method: str) -> None:
    pool, sink = Pool(), Noting()
    answered(answer(b"a"), pool=pool)
    connection = EngineConnection(pool)
    connection.connection_made(Transport())
    setattr(sink, method, lambda *_, **__: connection.abort())
    connection.start(b"", b"", sink)
    connection.data_received(answer(b"abc"))
    assert (sink.body, sink.ended, pool.returned) == (b"", None, 1)
