"""HEAD and OPTIONS for every path, and suggestions for paths that are not served."""

import difflib
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

__all__ = ["HeadAsGet", "allowed", "meant"]

MAX_PATH = 100
"""Longest path in characters that is compared with others, since that takes quadratic time."""

CLOSE = 0.85
"""Similarity from which a path is taken for a misspelling: /v1/chat/completion is similar enough,
/v1/completion for /v1/chat/completions is not."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class HeadAsGet:
    """ASGI middleware that answers HEAD like GET. The server sends no body; endless responses check
    `is_head` in the scope."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Process a request."""
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET", "is_head": True}
        await self._app(scope, receive, send)


def allowed(methods: str) -> str:
    """The Allow header for a path with these methods, a comma-separated list."""
    given = {method.strip() for method in methods.split(",")}
    return ", ".join(sorted(given | {"OPTIONS"} | ({"HEAD"} if "GET" in given else set())))


def meant(path: str, served: Iterable[str], posted: Iterable[str]) -> str | None:
    """The request that a client may have meant by a path that is not served, such as "POST
    /v1/completions". `served` are the paths of GET, `posted` those of POST."""
    methods = dict.fromkeys(served, "GET") | dict.fromkeys(posted, "POST")
    path = path.rstrip("/")
    if not path or len(path) > MAX_PATH:
        return None
    # A base URL without its /v1, with two of them, or with a prefix.
    longer = sorted((known for known in methods if known.endswith(path)), key=len)
    shorter = sorted((known for known in methods if path.endswith(known)), key=len, reverse=True)
    near = difflib.get_close_matches(path, methods, 1, CLOSE)
    found = next(iter([*longer, *shorter, *near]), None)
    return None if found is None else f"{methods[found]} {found}"
