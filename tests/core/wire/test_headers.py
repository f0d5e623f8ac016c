"""Which headers pass, and in which bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.wire.headers import (
    HOP_BY_HOP,
    REQUEST_ONLY,
    RESPONSE_ONLY,
    block,
    clean_request_id,
    content_length,
    end_to_end,
    is_event_stream,
    value,
    without_rate_limits,
)

NOTHING = HOP_BY_HOP


@pytest.mark.parametrize(
    "name",
    [
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"content-length",
    ],
)
def test_what_belongs_to_one_connection_does_not_pass(name: bytes) -> None:
    assert end_to_end([(name, b"x"), (b"accept", b"*/*")], NOTHING) == [(b"accept", b"*/*")]


def test_what_connection_names_does_not_pass_wherever_it_stands() -> None:
    headers = [
        (b"x-hop", b"1"),
        (b"connection", b"close, X-Hop"),
        (b"connection", b" x-other ,,"),
        (b"x-other", b"2"),
        (b"x-end", b"3"),
    ]
    assert end_to_end(headers, NOTHING) == [(b"x-end", b"3")]


def test_only_connection_names_what_does_not_pass() -> None:
    headers = [(b"vary", b"origin"), (b"origin", b"http://a"), (b"x", b"vary")]
    assert end_to_end(headers, NOTHING) == headers


def test_what_is_asked_to_be_dropped_is_dropped() -> None:
    headers = [(b"host", b"a"), (b"x-request-id", b"1"), (b"expect", b"100-continue")]
    assert end_to_end(headers, REQUEST_ONLY) == []
    assert end_to_end(headers, RESPONSE_ONLY) == [headers[0], headers[2]]


def test_the_clients_key_and_trace_reach_the_engine() -> None:
    headers = [(b"authorization", b"Bearer x"), (b"traceparent", b"00-1-2-01")]
    assert end_to_end(headers, REQUEST_ONLY) == headers


names = st.sampled_from([b"a", b"b", b"te", b"connection", b"host", b"x-request-id", b"set-cookie"])
header_lists = st.lists(st.tuples(names, st.sampled_from([b"", b"a", b"A, b", b"close"])))


@given(header_lists, st.frozensets(names))
def test_the_rest_keeps_its_order_and_its_repetitions(
    headers: list[tuple[bytes, bytes]], drop: frozenset[bytes]
) -> None:
    passed = end_to_end(headers, HOP_BY_HOP | drop)
    kept = {name for name, _ in passed}
    assert passed == [pair for pair in headers if pair[0] in kept]
    assert not kept & (drop | {b"te", b"connection"})


def test_a_block_ends_every_line() -> None:
    assert block([(b"a", b"1"), (b"b", b"")]) == b"a: 1\r\nb: \r\n"
    assert block([]) == b""


def test_the_first_of_several_values_counts() -> None:
    headers = [(b"a", b"1"), (b"b", b"2"), (b"b", b"3")]
    assert value(headers, b"b") == b"2"
    assert value(headers, b"c") is None


@pytest.mark.parametrize("given_id", [b"a", b"0f8fad5b-d9cb-469f-a165-70867728950e", b"a" * 128])
def test_a_short_harmless_request_id_is_kept(given_id: bytes) -> None:
    assert clean_request_id(given_id) == given_id.decode()


@pytest.mark.parametrize(
    "given_id",
    [None, b"", b"a" * 129, b"a b", b"a\n", b"a\r\nx: y", b"a\x00", b"\xe9", b'"', b"{}", b"a,b"],
)
def test_any_other_request_id_is_ignored(given_id: bytes | None) -> None:
    assert clean_request_id(given_id) is None


@given(st.binary(max_size=140))
def test_a_kept_request_id_cannot_end_a_header_line(given_id: bytes) -> None:
    text = clean_request_id(given_id)
    assert text is None or (text.isprintable() and text.isascii() and " " not in text)


@pytest.mark.parametrize(
    ("headers", "length"),
    [([(b"content-length", b"12")], 12), ([(b"content-length", b"-1")], None), ([], None)],
)
def test_a_length_is_a_number_or_none(
    headers: list[tuple[bytes, bytes]], length: int | None
) -> None:
    assert content_length(headers) == length


@pytest.mark.parametrize(
    ("content_type", "is_stream"),
    [
        (b"Text/Event-Stream; charset=utf-8", True),
        (b"application/json", False),
        (b"", False),
    ],
)
def test_an_event_stream_is_known_by_its_type(content_type: bytes, is_stream: bool) -> None:
    assert is_event_stream(content_type) is is_stream


def test_the_lines_of_rate_limits_are_left_out_and_no_others() -> None:
    lines = b"x-ratelimit-reset-tokens: 1s\r\na: x-ratelimit-\r\nx-ratelimit-any: 1\r\nb: 2\r\n"
    assert without_rate_limits(lines) == b"a: x-ratelimit-\r\nb: 2\r\n"
