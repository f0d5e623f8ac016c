"""Heads that clients send again: the same meaning as when they are parsed."""

import asyncio

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router.net.client.client_connection import ClientConnection
from router.net.client.client_request import RequestHead
from router.net.known_heads import (
    MAX_BYTES,
    NOTHING,
    VIEWED_BYTES,
    KnownHeads,
    split,
    split_large,
)
from tests.net.client import request
from tests.net.engine import json_reply
from tests.net.harness import Harness
from tests.net.payloads import COMPLETIONS, completion
from tests.net.wire import MANY, Handler, Wire, exchange

HEAD = RequestHead(b"POST", b"/", [], is_http_1_0=False, keep_alive=True)


LINES = st.sampled_from(
    [
        *(b"host: a", b"Content-Length: 3", b"content-length: 1", b"content-length: 03"),
        *(b"content-length: 99999999999999999999", b"content-length: +3", b"CONTENT-LENGTH: 3"),
        *(
            b"x-strength: 3",
            b"content-l: 3",
            b" 3",
            b"content-length:3",
            b"content-length: 3 ",
            b"content-length: ",
            b" content-length: 3",
        ),
        *(b"transfer-encoding: chunked", b"connection: close", b"connection: Upgrade"),
        *(
            b"upgrade: h2c",
            b"expect: 100-continue",
            b"no colon",
            b"x: \x00",
            b"x\n",
            b"",
            b"x: y\r",
        ),
    ]
)
STARTS = st.sampled_from(
    [
        *(b"POST / HTTP/1.1", b"POST / HTTP/1.0", b"CONNECT a:1 HTTP/1.1", b"GET /a HTTP/1.1"),
        *(b"\r\nPOST / HTTP/1.1", b"POST /", b"content-length: 3", b"\nPOST / HTTP/1.1"),
    ]
)
BODIES = st.sampled_from(
    [b"", b"a", b"abc", b"abcd", b"\r\n\r", b"0\r\n\r\n", b"1\r\na\r\n0\r\n\r\n"]
)


@st.composite
def reads(draw: st.DrawFn) -> list[bytes]:
    """One head with several lengths and bodies."""
    start, lines = draw(STARTS), draw(st.lists(LINES, max_size=4))
    ends = draw(st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n"]))
    found = []
    for length, body in draw(
        st.lists(st.tuples(st.integers(0, 5), BODIES), min_size=2, max_size=4)
    ):
        framed = [*lines, b"content-length: %d" % length]
        order = draw(st.permutations(framed)) if draw(st.booleans()) else framed
        found.append(ends.join([start, *order, b"", b""]) + body)
    return found


@given(reads())
@example([b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (n, n * b"a") for n in (1, 2, 2)])
@example([b"CONNECT a:1 HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (n, n * b"a") for n in (1, 2)])
def test_a_known_head_is_equal_to_its_parse(asked: list[bytes]) -> None:
    async def compare() -> None:
        warm = Handler()
        for data in asked:
            assert exchange(warm, data) == exchange(Handler(), data), data

    asyncio.run(compare())


async def test_a_known_head_in_the_midst_of_another_one_is_a_part_of_it() -> None:
    handler, data = Handler(), request("/", b"abc")
    exchange(handler, data)
    start = b"POST /other HTTP/1.1\r\nx: "
    assert exchange(handler, start, data) == exchange(Handler(), start, data)


async def test_a_head_with_another_length_is_not_parsed_again() -> None:
    handler = Handler()
    exchange(handler, request("/", b"a"))
    connection = ClientConnection(handler, set(), asyncio.get_running_loop())
    connection.connection_made(Wire())  # type: ignore[arg-type]
    connection.data_received(request("/", b"abc" * 100))
    assert handler.asked[-1][-1] == b"abc" * 100
    assert connection._parser._parser is None  # none was even made


@pytest.mark.parametrize(
    "data",
    [
        request("/", b""),
        request("/", b"abc")[:-1],
        request("/", b"abc") + b"G",
        request("/", b"1\r\na\r\n0\r\n\r\n", (b"transfer-encoding", b"chunked")),
        b"content-length: 1\r\n\r\na",
        b"",
    ],
)
def test_only_a_whole_request_with_a_body_is_split(data: bytes) -> None:
    assert split(data) == split_large(data) == NOTHING


def test_a_large_request_is_split_where_a_small_one_is_and_not_copied() -> None:
    data = request("/", b"abc")
    (key, body), (same, view) = split(data), split_large(data)
    assert (key, body) == (same, view)
    assert isinstance(view, memoryview)
    assert view.obj is data


@pytest.mark.parametrize("size", [VIEWED_BYTES // 2, VIEWED_BYTES, 2 * VIEWED_BYTES])
@pytest.mark.parametrize("header", [(), ((b"x", b"y" * MAX_BYTES),)], ids=["short", "long"])
async def test_a_known_head_of_a_large_request_is_equal_to_its_parse(
    size: int, header: tuple[tuple[bytes, bytes], ...]
) -> None:
    handler = Handler()
    for body in (b"a", b"b" * size, b"\r\n\r\n" * (size // 4)):
        data = request("/", body, *header)
        assert exchange(handler, data) == exchange(Handler(), data)
        assert handler.asked[-1][-1] == body


async def test_a_head_that_is_not_accepted_is_not_kept() -> None:
    """Those of operations, say: they may read its length."""
    handler = Handler()
    connection = ClientConnection(handler, set(), asyncio.get_running_loop())
    connection.connection_made(Wire())  # type: ignore[arg-type]
    handler.on_request = lambda *_: None  # type: ignore[method-assign]
    connection.data_received(request("/", b"abc"))
    assert not handler.known_heads._heads


def test_neither_many_heads_are_kept_nor_long_ones() -> None:
    known: KnownHeads[RequestHead] = KnownHeads(MANY)
    for n in range(2 * MANY + 1):
        known.add((b"%d" % n, b""), HEAD)
        assert len(known._heads) <= MANY
        assert known.find((b"%d" % n, b"")) is HEAD
    long = b"x" * MAX_BYTES, b"y"
    known.add(long, HEAD)
    assert known.find(long) is None


async def test_requests_with_one_head_reach_engines_with_their_own_bodies(harness: Harness) -> None:
    engine, router = await harness.single()
    client, bodies = await router.client(), []
    for prompt in ("a", "bcd", "ef", "bcd"):
        await client.send(request(COMPLETIONS, completion(prompt), (b"x-mine", b"1")))
        call = await engine.call()
        bodies.append(call.json["prompt"])
        values = dict(call.headers)
        assert values[b"x-mine"] == b"1"
        assert int(values[b"content-length"]) == len(call.body)
        call.send(json_reply({}))
        assert (await client.answer()).status == 200
    assert bodies == ["a", "bcd", "ef", "bcd"]
    assert len(router.router.handler.known_heads._heads) == 1
