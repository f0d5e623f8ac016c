"""Headers: which are forwarded in either direction, how they are written, and which of them a
response to a browser needs (CORS).

Hop-by-hop headers (RFC 9110 section 7.6.1), and those named by `Connection`, are not forwarded. The
router writes its own framing, Host and request id on each connection.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final

__all__ = [
    "CORS",
    "HOP_BY_HOP",
    "NAMES_HOSTS",
    "HeaderPairs",
    "Headers",
    "block",
    "clean_request_id",
    "content_coding",
    "content_length",
    "end_to_end",
    "is_event_stream",
    "value",
    "without",
    "without_rate_limits",
]

Headers = Iterable[tuple[bytes, bytes]]
HeaderPairs = list[tuple[bytes, bytes]]
"""Parsed headers, with lower-case names."""

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

REQUEST_ONLY = HOP_BY_HOP | {b"host", b"expect", b"x-request-id", b"content-encoding"}
"""Never forwarded to an engine: the router sets its own, and sends plain bodies."""

RESPONSE_ONLY = HOP_BY_HOP | {
    b"x-request-id",
    b"request-id",
    b"location",
    b"access-control-allow-credentials",
    b"access-control-allow-origin",
    b"access-control-expose-headers",
}
"""Never forwarded to a client. The router sets the request id, and decides which web pages may read
the response (vLLM's default allows all). Location may contain an address of the engines'
network."""

_RATE_LIMIT_LINES = re.compile(rb"^x-ratelimit-[^\n]*\n", re.MULTILINE)

# vLLM copies the id into every chunk, so its length is limited; 128 characters hold two UUIDs and a
# prefix.
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:@+/=-]{1,128}")

NAMES_HOSTS: Final = "___"
"""vLLM's MoRIIO and P2P NCCL connectors read addresses behind it out of a request's id."""


def end_to_end(headers: Collection[tuple[bytes, bytes]], drop: frozenset[bytes]) -> HeaderPairs:
    """The headers that are forwarded: without hop-by-hop ones and those in `drop`, which includes
    HOP_BY_HOP. Names are lower case."""
    for name, value_ in headers:
        if name == b"connection":
            drop |= {token.strip().lower() for token in value_.split(b",")}
    return [pair for pair in headers if pair[0] not in drop]


def block(headers: Headers) -> bytes:
    """Headers as lines, each with its line end."""
    return b"".join([b"%b: %b\r\n" % pair for pair in headers])


def without(lines: bytes, name: bytes) -> bytes:
    """A block without the lines of one header. Names are lower case."""
    return re.sub(rb"^" + re.escape(name) + rb":[^\n]*\n", b"", lines, flags=re.MULTILINE)


def without_rate_limits(lines: bytes) -> bytes:
    """A block without its `x-ratelimit-` lines. Names are lower case."""
    return _RATE_LIMIT_LINES.sub(b"", lines)


def value(headers: Headers, name: bytes) -> bytes | None:
    """The first value of a header, or None. `name` is lower case."""
    for key, value_ in headers:
        if key == name:
            return value_
    return None


def content_length(headers: Headers) -> int | None:
    """The value of Content-Length; None if there is none, or if it is not a number."""
    length = value(headers, b"content-length")
    return int(length) if length is not None and length.isdigit() else None


def content_coding(headers: Headers) -> bytes:
    """The content codings of a body in lower case, without `identity`; empty for a plain body."""
    names = b",".join([value_.lower() for name, value_ in headers if name == b"content-encoding"])
    codings = [name.strip() for name in names.split(b",")]
    return b", ".join([name for name in codings if name not in (b"", b"identity")])


def is_event_stream(content_type: bytes) -> bool:
    """Whether the content type is that of server-sent events."""
    return content_type.lower().startswith(b"text/event-stream")


def clean_request_id(given: bytes | None) -> str | None:
    """The client's X-Request-Id if it is short and harmless, else None."""
    if given is None:
        return None
    text = given.decode("latin-1")
    return text if _REQUEST_ID.fullmatch(text) and NAMES_HOSTS not in text else None


EXPOSED: Final = (
    b"access-control-expose-headers: x-request-id, request-id, retry-after, "
    b"x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests, "
    b"x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens\r\n"
)
"""Response headers that pages may read, in addition to the standard's safelist."""

METHODS: Final = b"access-control-allow-methods: GET, POST\r\n"

MAX_AGE: Final = b"access-control-max-age: 7200\r\n"
"""Seconds for which a browser may cache a preflight response; Chromium's maximum."""

_NAMES: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z, -]{1,2048}")
"""A list of header names as browsers send it."""


class CORS:
    """Cross-origin resource sharing (the CORS protocol of the Fetch standard): which web pages may
    call the API from a browser. Without it, browsers do not let pages read the responses.

    `origins`: origins of the pages that may call, as browsers send them, or `*`. API keys
    are sent in `Authorization`, so pages have to know them. There are no cookies, so credentials in
    the standard's sense are not allowed.
    """

    def __init__(self, origins: Iterable[str]) -> None:
        names = frozenset(origins)
        self._is_open = "*" in names
        self._origins = frozenset(name.encode() for name in names)

    def lines(self, fields: Mapping[bytes, bytes]) -> bytes:
        """The header lines of a response to a request with these headers; empty for other
        origins."""
        origin = fields.get(b"origin")
        if self._is_open:
            return b"" if origin is None else b"access-control-allow-origin: *\r\n" + EXPOSED
        if origin not in self._origins:
            return b"vary: origin\r\n"
        return b"access-control-allow-origin: %b\r\nvary: origin\r\n%b" % (origin, EXPOSED)

    def preflight(self, method: bytes, fields: Mapping[bytes, bytes]) -> bytes | None:
        """Further header lines of a response to a preflight. None if the request is not one, or for
        other origins."""
        if method != b"OPTIONS" or b"access-control-request-method" not in fields:
            return None
        if not self._is_open and fields.get(b"origin") not in self._origins:
            return None
        asked = fields.get(b"access-control-request-headers", b"")
        if not _NAMES.fullmatch(asked):
            return METHODS + MAX_AGE
        # Named one by one, because `*` does not cover `authorization`.
        return METHODS + MAX_AGE + b"access-control-allow-headers: %b\r\n" % asked
