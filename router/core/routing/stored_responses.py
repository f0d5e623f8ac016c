"""Stored responses: each is known to one engine only, which is named by the response's id.

vLLM keeps them in the memory of its API server (`VLLM_ENABLE_RESPONSES_API_STORE=1`) and answers
404 for those of other engines. It takes a response's id from the request's `request_id`. The router
writes one that ends with a mark of the engine's URL. So every worker and replica finds the engine,
also after a restart of the router, without a table.
"""

from collections.abc import Iterable
from typing import Final
from zlib import crc32

from router.core.urls import split_rank
from router.core.values import Endpoint

__all__ = ["UNIQUE_BITS", "keepers", "response_id"]

PREFIX: Final = "resp_"
MARK_DIGITS: Final = 8
"""Hexadecimal digits of a mark."""


UNIQUE_BITS: Final = 96
"""Bits of an id beside the mark."""


def response_id(unique: int, keeper: Endpoint | None) -> bytes:
    """The id of a response, as JSON. It names the engine that keeps the response, if any."""
    mark = "" if keeper is None else _mark(keeper)
    return f'"{PREFIX}{unique:0{UNIQUE_BITS // 4}x}{mark}"'.encode()


def keepers(name: object, endpoints: Iterable[Endpoint]) -> tuple[Endpoint, ...]:
    """Those of the endpoints whose engine has the response with this id: none if it is not an id
    of the router, several if they are data-parallel ranks of one engine."""
    if not isinstance(name, str) or not name.startswith(PREFIX):
        return ()
    mark = name[-MARK_DIGITS:]
    return tuple(endpoint for endpoint in endpoints if _mark(endpoint) == mark)


def _mark(endpoint: Endpoint) -> str:
    """The ranks of an engine share its API server, and so its mark."""
    return f"{crc32(split_rank(endpoint.url)[0].encode()):0{MARK_DIGITS}x}"
