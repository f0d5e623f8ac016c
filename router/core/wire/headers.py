"""Which headers are forwarded, in either direction, and how they are written.

Hop-by-hop headers (RFC 9110 section 7.6.1), and those that `Connection` names, are not forwarded.
The router writes its own framing, Host and request ids on each connection.
"""

import re
from collections.abc import Collection, Iterable

__all__ = [
    "HOP_BY_HOP",
    "HeaderPairs",
    "Headers",
    "block",
    "clean_request_id",
    "content_length",
    "end_to_end",
    "is_event_stream",
    "value",
    "without",
    "without_rate_limits",
]

Headers = Iterable[tuple[bytes, bytes]]
HeaderPairs = list[tuple[bytes, bytes]]
"""Headers as a parser found them, names in lower case."""

HOP_BY_HOP = frozenset(
    {
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
    }
)

REQUEST_ONLY = HOP_BY_HOP | {b"host", b"expect", b"x-request-id"}
"""Never copied to an engine: each attempt has its own."""

RESPONSE_ONLY = HOP_BY_HOP | {
    b"x-request-id",
    b"location",
    b"access-control-allow-credentials",
    b"access-control-allow-origin",
    b"access-control-expose-headers",
}
"""Never copied to a client: the router names the request, and which web pages may read its answer
(vLLM by itself lets all). An engine sends clients elsewhere by an address of its own network."""

_RATE_LIMIT_LINES = re.compile(rb"^x-ratelimit-[^\n]*\n", re.MULTILINE)

# Longer ids are copied by vLLM into every chunk; 128 characters hold two UUIDs and a prefix.
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:@+/=-]{1,128}")


def end_to_end(headers: Collection[tuple[bytes, bytes]], drop: frozenset[bytes]) -> HeaderPairs:
    """The headers that pass on: not those of one connection, nor those in `drop`, which holds
    HOP_BY_HOP; names are lower case."""
    for name, value_ in headers:
        if name == b"connection":
            drop |= {token.strip().lower() for token in value_.split(b",")}
    return [pair for pair in headers if pair[0] not in drop]


def block(headers: Headers) -> bytes:
    """Headers as they stand on the wire, each line ended."""
    return b"".join([b"%b: %b\r\n" % pair for pair in headers])


def without(lines: bytes, name: bytes) -> bytes:
    """A block without the lines of a header; names are lower case."""
    return re.sub(rb"^" + re.escape(name) + rb":[^\n]*\n", b"", lines, flags=re.MULTILINE)


def without_rate_limits(lines: bytes) -> bytes:
    """A block without all `x-ratelimit-` lines; names are lower case."""
    return _RATE_LIMIT_LINES.sub(b"", lines)


def value(headers: Headers, name: bytes) -> bytes | None:
    """The first value of a header; `name` in lower case."""
    for key, value_ in headers:
        if key == name:
            return value_
    return None


def content_length(headers: Headers) -> int | None:
    """The length that the headers declare, if it is a number."""
    length = value(headers, b"content-length")
    return int(length) if length is not None and length.isdigit() else None


def is_event_stream(content_type: bytes) -> bool:
    """Whether a body of this type is a stream of server-sent events."""
    return content_type.lower().startswith(b"text/event-stream")


def clean_request_id(given: bytes | None) -> str | None:
    """The client's X-Request-Id when it is short and harmless, else None."""
    if given is None:
        return None
    text = given.decode("latin-1")
    return text if _REQUEST_ID.fullmatch(text) else None
