"""What is refused by a request's head, and what is not."""

import pytest

from router.core.errors import (
    BadRequest,
    BodyTooLarge,
    LengthRequired,
    MethodNotAllowed,
    RouterError,
    UnsupportedBody,
)
from router.core.wire.request_head import check_head, check_size, declared_size

REFUSED: dict[str, tuple[bytes, dict[bytes, bytes], type[RouterError]]] = {
    "another method": (b"PUT", {b"content-length": b"2"}, MethodNotAllowed),
    "no body": (b"POST", {}, LengthRequired),
    "no number": (b"POST", {b"content-length": b"+2"}, BadRequest),
    "too long": (b"POST", {b"content-length": b"11"}, BodyTooLarge),
    "compressed": (
        b"POST",
        {b"content-length": b"2", b"content-encoding": b"gzip"},
        UnsupportedBody,
    ),
}


@pytest.mark.parametrize(("method", "fields", "error"), REFUSED.values(), ids=REFUSED)
def test_a_head_is_refused(
    method: bytes, fields: dict[bytes, bytes], error: type[RouterError]
) -> None:
    with pytest.raises(error):
        check_head(method, "/v1/completions", fields, 10)


@pytest.mark.parametrize(
    "fields",
    [
        {b"content-length": b"10"},
        {b"transfer-encoding": b"chunked"},
        {b"content-length": b"2", b"content-encoding": b"Identity"},
    ],
)
def test_a_good_head_passes(fields: dict[bytes, bytes]) -> None:
    check_head(b"POST", "/v1/completions", fields, 10)


def test_a_body_may_be_as_large_as_the_limit() -> None:
    check_size(10, 10)
    with pytest.raises(BodyTooLarge):
        check_size(11, 10)


def test_what_is_declared_is_known_before_it_comes() -> None:
    assert declared_size({b"content-length": b"12"}) == 12
    assert declared_size({b"transfer-encoding": b"chunked"}) == 0
