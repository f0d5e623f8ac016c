"""Checks of a request's head, and the limit of its body's size."""

from collections.abc import Mapping

from router.core.errors import (
    BadRequest,
    BodyTooLarge,
    LengthRequired,
    MethodNotAllowed,
    UnsupportedBody,
)

__all__ = ["check_head", "check_size", "declared_size"]

MAX_DIGITS = 20
"""Of a Content-Length: as many as 64 bits have."""


def check_head(
    method: bytes, path: str, fields: Mapping[bytes, bytes], max_body_bytes: int
) -> None:
    """Raise the RouterError for an inference request's head that cannot be accepted. `fields`: its
    headers by lower-case name."""
    if method != b"POST":
        raise MethodNotAllowed(f"{path} takes POST, not {method.decode()}.")
    length = fields.get(b"content-length")
    if length is None and b"transfer-encoding" not in fields:
        raise LengthRequired("A body is required: send Content-Length or chunked encoding.")
    if length is not None:
        if not length.isdigit() or len(length) > MAX_DIGITS:
            raise BadRequest("Content-Length is not a number.")
        check_size(int(length), max_body_bytes)
    coding = fields.get(b"content-encoding")
    if coding is not None and coding.lower() != b"identity":
        raise UnsupportedBody("Compressed bodies are not accepted: engines cannot read them.")


def declared_size(fields: Mapping[bytes, bytes]) -> int:
    """The Content-Length, which `check_head` has accepted; 0 without one."""
    return int(fields.get(b"content-length", b"0"))


def check_size(size: int, limit: int) -> None:
    """Raise BodyTooLarge for a body of more than `limit` bytes."""
    if size > limit:
        raise BodyTooLarge(f"The body is larger than {limit} bytes.")
