"""An engine's answer as its connection passes it on: its head, and the sink that receives it."""

from collections.abc import Mapping
from typing import Final

from mypy_extensions import mypyc_attr

from router.core.values import Failure
from router.core.wire import headers as http
from router.core.wire.headers import HeaderPairs

__all__ = ["AnswerHead", "Sink"]

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


@mypyc_attr(allow_interpreted_subclasses=True)
class Sink:
    """Receives one answer. `on_end` or `on_lost` is called last and exactly once, unless the
    request is aborted.

    It is a class, not a Protocol, because compiled code calls a Protocol's methods by name: 400
    instructions more per chunk. The decorator lets classes that are not compiled derive from it.
    """

    __slots__ = ()

    def on_head(self, head: AnswerHead, length: int | None, *, has_body: bool) -> None:
        """The status and headers have arrived. `length`: of the body in bytes, if the engine states
        it. `has_body`: `on_data` follows immediately."""
        raise NotImplementedError

    def on_data(self, data: bytes, *, is_last: bool) -> None:
        """The body data of one read have arrived. After the last ones `on_end` follows
        immediately."""
        raise NotImplementedError

    def on_chunk(self, chunk: bytes, size: int) -> bool:
        """Perhaps one whole framed chunk has arrived, with `size` bytes of data. It is one if
        `chunk` ends with the line end of its framing.

        Returns True if the sink took it as it is; otherwise it is parsed and passed to `on_data`.
        """
        raise NotImplementedError

    def on_end(self) -> None:
        """The answer is complete."""
        raise NotImplementedError

    def on_lost(self, failure: Failure) -> None:
        """The answer will not be completed."""
        raise NotImplementedError
