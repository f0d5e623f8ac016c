"""Cross-origin resource sharing (the CORS protocol of the Fetch standard): which web pages may call
the API from a browser. Without it, browsers do not let pages read the responses.

API keys are sent in `Authorization`, so pages have to know them. There are no cookies, so
credentials in the standard's sense are not allowed.
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
"""Response headers that pages may read, in addition to the standard's safelist."""

METHODS: Final = b"access-control-allow-methods: GET, POST\r\n"

MAX_AGE: Final = b"access-control-max-age: 7200\r\n"
"""Seconds for which a browser may cache a preflight response; Chromium's maximum."""

_NAMES: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z, -]{1,2048}")
"""A list of header names as browsers send it."""


class CORS:
    """The CORS rules. `origins`: origins of the pages that may call, as browsers send them, or
    `ANY`."""

    def __init__(self, origins: Iterable[str]) -> None:
        names = frozenset(origins)
        self._is_open = ANY in names
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
