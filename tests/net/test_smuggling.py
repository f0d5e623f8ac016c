"""Request smuggling: the router and other parsers of the same bytes find the same requests.

A request that one of two parsers takes for the body of another is an attack on the users behind
them. The oracle is h11: strict, and what vLLM's uvicorn parses with where httptools is missing.
"""

from collections.abc import Iterator
from pathlib import Path

import h11
import pytest

from router.net.client.client_request import MAX_WAITING
from tests.net.smuggled import NAMED, ODD, SHAPES, cl_te, te_cl
from tests.net.wire import Handler, settled

CORPUS = Path(__file__).parent / "corpus" / "gunicorn.tsv"

Request = tuple[bytes, bytes, bytes]
"""Method, target, body."""


def _corpus() -> Iterator[tuple[str, bytes]]:
    for line in CORPUS.read_text().splitlines():
        name, _, data = line.partition("\t")
        yield name, data.encode().decode("unicode_escape").encode("latin-1")


def by_h11(data: bytes) -> list[Request]:
    """The whole requests that h11 finds, up to the first that is none or closes."""
    found: list[Request] = []
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    head, body = None, b""
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError:
            return found
        match event:
            case h11.Request():
                head, body = event, b""
            case h11.Data():
                body += event.data
            case h11.EndOfMessage():
                assert head is not None
                found.append((head.method, head.target, body))
                connection.send(h11.Response(status_code=400, headers=[("content-length", "0")]))
                connection.send(h11.EndOfMessage())
                if connection.our_state is not h11.DONE:
                    return found
                connection.start_next_cycle()
            case _:
                return found


async def by_router(data: bytes) -> tuple[list[Request], bytes]:
    """The whole requests that the router finds, and what it writes."""
    asked, written, _ = await settled(Handler(), data)
    return [(each[0], each[1], each[-1]) for each in asked], written  # type: ignore[misc]


def _is_about_host(data: bytes) -> bool:
    head = data.lstrip(b"\r\n").partition(b"\r\n\r\n")[0].lower()
    return head.count(b"\r\nhost:") != 1


@pytest.mark.parametrize(("name", "data"), list(_corpus()), ids=[name for name, _ in _corpus()])
async def test_it_takes_no_more_requests_than_a_strict_parser(name: str, data: bytes) -> None:
    found, written = await by_router(data)
    expected = by_h11(data)
    if found == expected[: len(found)]:
        if len(found) < len(expected):  # it is stricter: then it says so, and ends
            assert b"HTTP/1.1 4" in written or b"connection: close" in written, name
        return
    assert _is_about_host(data), (name, found, expected)
    with_host = _with_host(data)
    assert found == by_h11(with_host)[: len(found)], (name, found, by_h11(with_host))


def _with_host(data: bytes) -> bytes:
    """The same requests, each with one Host header."""
    lines = [line for line in data.split(b"\r\n") if not line.lower().startswith(b"host:")]
    return b"\r\n".join(
        line + b"\r\nHost: a" if line.endswith((b" HTTP/1.1", b" HTTP/1.0")) else line
        for line in lines
    )


# The spellings of Transfer-Encoding by which one parser sees chunks and another does not.

SPELLINGS = [*NAMED.values(), *(shape % byte for shape in SHAPES for byte in ODD)]

HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n"


def _cl_te(spelling: bytes) -> bytes:
    return cl_te(b"/", spelling, HIDDEN)


def _te_cl(spelling: bytes) -> bytes:
    return te_cl(b"/", spelling, HIDDEN)


def _te_te(spelling: bytes) -> bytes:
    """Chunks, and a second spelling that may undo them."""
    head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n%b\r\n\r\n"
    return head % spelling + b"0\r\n\r\n" + HIDDEN


@pytest.mark.parametrize("framed", [_cl_te, _te_cl, _te_te])
async def test_no_spelling_hides_a_request(framed: object) -> None:
    """Of two lengths at most one is believed, and it is the one that a strict parser believes."""
    assert callable(framed)
    for spelling in SPELLINGS:
        data = framed(spelling)
        found, written = await by_router(data)
        expected = by_h11(data)
        assert found == expected[: len(found)], (spelling, found, expected)
        if b"Transfer-Encoding: chunked\r\n" in data and b"Content-Length" in data:
            assert found == [], spelling
        assert len(found) + written.count(b"HTTP/1.1 400") >= 1, spelling


@pytest.mark.parametrize(
    "length",
    [
        *(b"1, 1", b"1,1", b"+1", b"-1", b"0x1", b"1_0", b"1 1", b"1.0", b"1e0", b"\xd9\xa1"),
        *(b"", b" ", b"1\r\nContent-Length: 1", b"1\r\nContent-Length: 2", b"1;a"),
        *(b"99999999999999999999", b"18446744073709551617"),
    ],
)
async def test_a_length_that_two_may_read_differently_is_refused(length: bytes) -> None:
    data = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %b\r\n\r\na" % length
    found, written = await by_router(data)
    assert found == []
    assert written.startswith(b"HTTP/1.1 400 ")


CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "chunks",
    [
        *(b"1\na\r\n0\r\n\r\n", b"1\r\na\n0\r\n\r\n", b"1\r\na\r\n0\n\r\n", b"1\r\na\r\n0\r\n\n"),
        *(b"1\r\naX0\r\n\r\n", b"1\r\naXX0\r\n\r\n", b"0x1\r\na\r\n0\r\n\r\n", b"+1\r\na\r\n"),
        *(b" 1\r\na\r\n0\r\n\r\n", b"1 \r\na\r\n0\r\n\r\n", b"1_0\r\n", b"g\r\n", b"\r\n"),
        *(b"1;a\nb\r\na\r\n0\r\n\r\n", b"1;\na\r\n0\r\n\r\n", b"1\r\r\na\r\n0\r\n\r\n"),
        b"10000000000000001\r\na\r\n0\r\n\r\n",
    ],
)
async def test_chunks_that_two_may_read_differently_are_refused(chunks: bytes) -> None:
    found, written = await by_router(CHUNKED + chunks + HIDDEN)
    assert found == []
    assert written.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "coding",
    [
        *(b"gzip, chunked", b"identity, chunked", b"chunked, chunked", b"gzip", b"chunked;q=1"),
        *(b"gzip\r\nTransfer-Encoding: chunked", b"chunked\r\nTransfer-Encoding: identity"),
        *(b"chunked\r\nTransfer-Encoding: chunked", b"", b",chunked", b"chunked,"),
    ],
)
async def test_of_transfer_codings_there_is_only_chunked(coding: bytes) -> None:
    """The other codings would stay, and the engine would get their contents."""
    data = CHUNKED.replace(b"chunked", coding) + b"1\r\na\r\n0\r\n\r\n"
    found, written = await by_router(data)
    assert found == []
    assert written.startswith(b"HTTP/1.1 400 ")


async def test_http_1_0_has_no_chunks() -> None:
    """A proxy of that version does not know them, and takes what follows for another request."""
    data = CHUNKED.replace(b"HTTP/1.1", b"HTTP/1.0") + b"1\r\na\r\n0\r\n\r\n"
    found, written = await by_router(data)
    assert found == []
    assert written.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("extension", [b";a", b";a=b", b';a="b;c"', b"; a=b", b";a=\tb"])
async def test_chunk_extensions_and_trailers_are_not_forwarded(extension: bytes) -> None:
    data = CHUNKED + b"1%b\r\na\r\n0\r\nContent-Length: 9\r\nX: y\r\n\r\n" % extension
    handler = Handler()
    asked, written, _ = await settled(handler, data)
    if not asked:
        assert written.startswith(b"HTTP/1.1 400 ")
        return
    ((_, _, headers, *_, body),) = asked
    assert body == b"a"
    assert headers == [(b"host", b"a"), (b"transfer-encoding", b"chunked")]


# What a tunnel, another version and a flood hide.


async def test_behind_connect_nothing_is_a_request() -> None:
    """Its bytes belong to the tunnel, which there is not."""
    found, written = await by_router(b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n" + HIDDEN)
    assert [method for method, _, _ in found] == [b"CONNECT"]
    assert b"connection: close" in written


async def test_a_flood_of_connects_is_one() -> None:
    found, _ = await by_router(b"CONNECT a:1 HTTP/1.1\r\n\r\n" * 10_000)
    assert len(found) == 1


@pytest.mark.parametrize(
    "start",
    [
        *(b"GET / HTTP/0.9\r\n", b"GET /\r\n", b"GET / HTTP/2.0\r\n", b"GET / HTTP/1.2\r\n"),
        *(b"GET / HTTP/1.10\r\n", b"GET / HTTP/11\r\n", b"GET / http/1.1\r\n", b"GET / HTTP/1\r\n"),
        *(b"GET / HTTPS/1.1\r\n", b"GET / HTTP/1.1 \r\n", b"GET /  HTTP/1.1 x\r\n"),
    ],
)
async def test_another_version_is_refused(start: bytes) -> None:
    found, written = await by_router(start + b"Host: a\r\n\r\n")
    assert found == []
    assert written.startswith(b"HTTP/1.1 400 ")


async def test_an_offer_to_upgrade_http_1_0_leaves_it_http_1_0() -> None:
    data = b"GET / HTTP/1.0\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"
    ((_, _, _, is_http_1_0, keep_alive, _),), _, is_closed = await settled(Handler(), data)
    assert is_http_1_0
    assert not keep_alive
    assert is_closed


async def test_of_a_flood_of_requests_in_one_read_so_many_are_answered() -> None:
    """They would take sixty times the memory of their bytes while the first one is answered."""
    found, written = await by_router(HIDDEN * 5000)
    assert len(found) == MAX_WAITING + 1
    assert written.count(b"HTTP/1.1 200") == MAX_WAITING + 1
    assert written.count(b"connection: close") == 1
