"""What the head of a request to an engine takes from the client's."""

from typing import Final

from router.core.routing.gateway import GATEWAY_HEADERS
from router.core.wire import headers as http
from router.net.client.client_request import RequestHead

__all__ = ["DROP_FOR_ENGINE", "DROP_WHEN_READING", "KEY_HEADERS", "lines_for_engine"]

KEY_HEADERS: Final = frozenset({b"authorization", b"x-api-key"})
"""The client's key, where that is for the router."""

DROP_FOR_ENGINE: Final = http.REQUEST_ONLY | GATEWAY_HEADERS
DROP_WHEN_READING: Final = DROP_FOR_ENGINE | {b"accept-encoding"}
"""A compressed answer could not be searched for errors and KV parameters."""


def lines_for_engine(head: RequestHead, drop: frozenset[bytes], key: str | None) -> bytes:
    """The client's header lines but for those in `drop`, and the `key` that engines want."""
    if key is None:
        return http.block(http.end_to_end(head.headers, drop))
    lines = http.block(http.end_to_end(head.headers, drop | {b"authorization"}))
    return lines + b"authorization: Bearer %b\r\n" % key.encode()
