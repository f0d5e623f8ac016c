"""Which headers pass, and in which bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.wire.headers import (
    CORS,
    HOP_BY_HOP,
    REQUEST_ONLY,
    RESPONSE_ONLY,
    block,
    clean_request_id,
    content_coding,
    content_length,
    end_to_end,
    is_event_stream,
    value,
    without_rate_limits,
)

NOTHING = HOP_BY_HOP


@pytest.mark.parametrize(
    ("values", "coding"),
    [
        ((), b""),
        ((b"gzip",), b"gzip"),
        ((b"ZStd ",), b"zstd"),
        ((b"Identity",), b""),
        ((b"identity, gzip,",), b"gzip"),
        ((b"gzip", b"identity", b"zstd"), b"gzip, zstd"),
    ],
)
def test_the_content_coding_is_that_of_all_lines(values: tuple[bytes, ...], coding: bytes) -> None:
    lines = [(b"content-encoding", value) for value in values]
    assert content_coding([(b"content-type", b"gzip"), *lines]) == coding


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
def test_hop_by_hop_headers_do_not_pass(name: bytes) -> None:
    assert end_to_end([(name, b"x"), (b"accept", b"*/*")], NOTHING) == [(b"accept", b"*/*")]


def test_headers_named_by_connection_do_not_pass_in_any_order() -> None:
    headers = [
        (b"x-hop", b"1"),
        (b"connection", b"close, X-Hop"),
        (b"connection", b" x-other ,,"),
        (b"x-other", b"2"),
        (b"x-end", b"3"),
    ]
    assert end_to_end(headers, NOTHING) == [(b"x-end", b"3")]


def test_only_the_connection_header_blocks_headers() -> None:
    headers = [(b"vary", b"origin"), (b"origin", b"http://a"), (b"x", b"vary")]
    assert end_to_end(headers, NOTHING) == headers


def test_requested_drops_are_dropped() -> None:
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
    [
        None,
        b"",
        b"a" * 129,
        b"a b",
        b"a\n",
        b"a\r\nx: y",
        b"a\x00",
        b"\xe9",
        b'"',
        b"{}",
        b"a,b",
        b"a___b",
    ],
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


def test_only_the_rate_limit_lines_are_dropped() -> None:
    lines = b"x-ratelimit-reset-tokens: 1s\r\na: x-ratelimit-\r\nx-ratelimit-any: 1\r\nb: 2\r\n"
    assert without_rate_limits(lines) == b"a: x-ratelimit-\r\nb: 2\r\n"


PAGE = b"https://app.example"
ASKED = {
    b"origin": PAGE,
    b"access-control-request-method": b"POST",
    b"access-control-request-headers": b"authorization,content-type,x-stainless-os",
}

ONE, ANY = CORS(["https://app.example"]), CORS(["*"])


def headers(lines: bytes) -> dict[bytes, bytes]:
    """Header lines as a mapping; none stands twice."""
    found: dict[bytes, bytes] = {}
    for line in lines.split(b"\r\n")[:-1]:
        name, _, value = line.partition(b": ")
        assert name not in found
        found[name] = value
    return found


def test_a_listed_origin_may_read_the_answer_and_vary_is_set():
    found = headers(ONE.lines({b"origin": PAGE}))
    assert found[b"access-control-allow-origin"] == PAGE
    assert found[b"vary"] == b"origin"
    assert b"x-request-id" in found[b"access-control-expose-headers"]


@pytest.mark.parametrize("origin", [b"https://app.example.evil", b"null", b"*", b"", None])
def test_no_other_page_may(origin: bytes | None):
    fields = {} if origin is None else {b"origin": origin}
    assert headers(ONE.lines(fields)) == {b"vary": b"origin"}


def test_a_star_admits_every_page():
    assert headers(ANY.lines({b"origin": b"null"}))[b"access-control-allow-origin"] == b"*"
    assert ANY.lines({}) == b""


@pytest.mark.parametrize("cors", [ONE, ANY])
def test_a_preflight_answer_lists_methods_and_headers(cors: CORS):
    lines = cors.preflight(b"OPTIONS", ASKED)
    assert lines is not None
    found = headers(lines)
    assert found[b"access-control-allow-methods"] == b"GET, POST"
    # Named one by one: a star would not stand for `authorization`.
    allowed = found[b"access-control-allow-headers"]
    assert allowed == ASKED[b"access-control-request-headers"]
    assert int(found[b"access-control-max-age"]) > 0


def test_credentials_are_never_allowed():
    for cors in (ONE, ANY):
        assert b"credentials" not in cors.lines(ASKED) + (cors.preflight(b"OPTIONS", ASKED) or b"")


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        (b"POST", ASKED),
        (b"OPTIONS", {b"origin": PAGE}),
        (b"OPTIONS", {**ASKED, b"origin": b"https://other.example"}),
        (b"OPTIONS", {b"access-control-request-method": b"POST"}),
    ],
)
def test_other_options_requests_get_the_usual_answer(method: bytes, fields: dict[bytes, bytes]):
    assert ONE.preflight(method, fields) is None


@given(st.binary(), st.binary())
def test_nothing_that_a_client_sends_can_forge_a_header(origin: bytes, asked: bytes):
    fields = {**ASKED, b"access-control-request-headers": asked, b"origin": origin}
    for cors in (ONE, ANY):
        for lines in (cors.lines(fields), cors.preflight(b"OPTIONS", fields) or b""):
            assert all(name.isascii() and value.isascii() for name, value in headers(lines).items())
            assert lines.count(b"\n") == lines.count(b"\r\n")
