"""Which web pages may call the API: what the Fetch standard's CORS protocol says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.wire.cors import CORS

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


def test_a_page_of_the_list_may_read_the_answer_and_caches_are_told():
    found = headers(ONE.lines({b"origin": PAGE}))
    assert found[b"access-control-allow-origin"] == PAGE
    assert found[b"vary"] == b"origin"
    assert b"x-request-id" in found[b"access-control-expose-headers"]


@pytest.mark.parametrize("origin", [b"https://app.example.evil", b"null", b"*", b"", None])
def test_no_other_page_may(origin: bytes | None):
    fields = {} if origin is None else {b"origin": origin}
    assert headers(ONE.lines(fields)) == {b"vary": b"origin"}


def test_with_a_star_every_page_may_and_nobody_without_one_is_told_of_it():
    assert headers(ANY.lines({b"origin": b"null"}))[b"access-control-allow-origin"] == b"*"
    assert ANY.lines({}) == b""


@pytest.mark.parametrize("cors", [ONE, ANY])
def test_a_preflight_learns_what_may_be_sent(cors: CORS):
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
def test_what_is_no_preflight_of_such_a_page_is_answered_as_usual(
    method: bytes, fields: dict[bytes, bytes]
):
    assert ONE.preflight(method, fields) is None


@given(st.binary(), st.binary())
def test_nothing_that_a_client_sends_can_forge_a_header(origin: bytes, asked: bytes):
    fields = {**ASKED, b"access-control-request-headers": asked, b"origin": origin}
    for cors in (ONE, ANY):
        for lines in (cors.lines(fields), cors.preflight(b"OPTIONS", fields) or b""):
            assert all(name.isascii() and value.isascii() for name, value in headers(lines).items())
            assert lines.count(b"\n") == lines.count(b"\r\n")
