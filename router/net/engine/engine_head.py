"""Header lines of engine requests that are taken from the client's request."""

from typing import Final

from router.core.gateway.protocol import GATEWAY_HEADERS
from router.core.wire import headers as http
from router.net.client.client_request import RequestHead

__all__ = ["DROP_FOR_ENGINE", "DROP_WHEN_READING", "KEY_HEADERS", "lines_for_engine"]

KEY_HEADERS: Final = frozenset({b"authorization", b"x-api-key"})
"""The client's API key, in the forms that a router with API keys of its own accepts."""

DROP_FOR_ENGINE: Final = http.REQUEST_ONLY | GATEWAY_HEADERS
DROP_WHEN_READING: Final = DROP_FOR_ENGINE | {b"accept-encoding"}
"""Client headers that are also dropped where the router reads the answer: a compressed answer could
not be searched for errors and KV parameters."""


def lines_for_engine(head: RequestHead, drop: frozenset[bytes], key: str | None) -> bytes:
    """The client's header lines except those named in `drop`, plus the engines' API `key` if there
    is one."""
    if key is None:
        return http.block(http.end_to_end(head.headers, drop))
    lines = http.block(http.end_to_end(head.headers, drop | {b"authorization"}))
    return lines + b"authorization: Bearer %b\r\n" % key.encode()
