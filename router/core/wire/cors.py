"""Cross-origin resource sharing: which web pages may call the API from a browser (the Fetch
standard's CORS protocol). Without it browsers let no page read an answer.

Keys are sent in `Authorization`, which pages must know; there are no cookies, so credentials in the
standard's sense are not allowed.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

__all__ = ["ANY", "CORS"]

ANY: Final = "*"

EXPOSED: Final = (
    b"access-control-expose-headers: x-request-id, retry-after, "
    b"x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests, "
    b"x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens\r\n"
)
"""Headers of answers that pages may read, beside the few that they always may."""

METHODS: Final = b"access-control-allow-methods: GET, POST\r\n"

MAX_AGE: Final = b"access-control-max-age: 7200\r\n"
"""Seconds for which a browser keeps a preflight's answer; Chromium keeps none longer."""

_NAMES: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z, -]{1,2048}")
"""A list of header names, as a browser writes it."""


class CORS:
    """`origins` are those whose pages may call, as browsers send them, or `ANY`."""

    def __init__(self, origins: Iterable[str]) -> None:
        names = frozenset(origins)
        self._is_open = ANY in names
        self._origins = frozenset(name.encode() for name in names)

    def lines(self, fields: Mapping[bytes, bytes]) -> bytes:
        """The header lines of an answer to a request with these headers; none for other pages."""
        origin = fields.get(b"origin")
        if self._is_open:
            return b"" if origin is None else b"access-control-allow-origin: *\r\n" + EXPOSED
        if origin not in self._origins:
            return b"vary: origin\r\n"
        return b"access-control-allow-origin: %b\r\nvary: origin\r\n%b" % (origin, EXPOSED)

    def preflight(self, method: bytes, fields: Mapping[bytes, bytes]) -> bytes | None:
        """The further header lines of the answer to a preflight; None if the request is none, or
        of another page."""
        if method != b"OPTIONS" or b"access-control-request-method" not in fields:
            return None
        if not self._is_open and fields.get(b"origin") not in self._origins:
            return None
        asked = fields.get(b"access-control-request-headers", b"")
        if not _NAMES.fullmatch(asked):
            return METHODS + MAX_AGE
        # Named one by one: `*` would not be for `authorization`.
        return METHODS + MAX_AGE + b"access-control-allow-headers: %b\r\n" % asked
