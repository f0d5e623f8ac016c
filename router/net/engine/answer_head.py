"""The head of an engine's answer, as received on its connection."""

from collections.abc import Mapping
from typing import Final

from router.core.wire import headers as http
from router.core.wire.headers import HeaderPairs

__all__ = ["AnswerHead"]

REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})


class AnswerHead:
    """The head of an answer. It is immutable and shared by answers that differ only in their
    bodies.

    `headers` have lower-case names. A shared head's content-length may be that of another answer.
    """

    __slots__ = (
        "_client_lines",
        "fields",
        "headers",
        "is_compressed",
        "is_event_stream",
        "is_redirect",
        "status",
    )

    def __init__(self, status: int, headers: HeaderPairs) -> None:
        self.status = status
        self.headers = headers
        self.fields: Mapping[bytes, bytes] = dict(headers)
        """Headers by name; the last one where a name is repeated."""
        self.is_event_stream = http.is_event_stream(self.fields.get(b"content-type", b""))
        """Whether the body is a stream of server-sent events (SSE)."""
        coding = self.fields.get(b"content-encoding", b"identity")
        self.is_compressed = coding.lower() != b"identity"
        self.is_redirect = status in REDIRECTS
        """Whether it is a redirect. Its target may be an address that must not be shown to
        clients."""
        self._client_lines: bytes | None = None

    def lines_for_client(self) -> bytes:
        """The header lines that are sent to the client."""
        lines = self._client_lines
        if lines is None:
            lines = http.block(http.end_to_end(self.headers, http.RESPONSE_ONLY))
            self._client_lines = lines
        return lines
