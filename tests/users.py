"""Users of a router in another process: each asks again as soon as it has its answer."""

import contextlib
import http.client
import json
import threading
import urllib.request
from collections.abc import Callable, Iterator

__all__ = ["users"]

SECONDS = 60.0
"""For an answer that must come; only a test that fails waits so long."""

PAUSE_SECONDS = 0.25
"""Between two requests of a user."""


@contextlib.contextmanager
def users(
    router: str,
    count: int,
    *,
    prompt: str = "Hello",
    tokens: int = 20,
    before: Callable[[], None] = lambda: None,
) -> Iterator[None]:
    """So many of them, until the end of the context; whatever they get. `before` comes before each
    request."""
    is_over = threading.Event()

    def ask() -> None:
        while not is_over.is_set():
            before()
            _stream(router, prompt, tokens)
            is_over.wait(PAUSE_SECONDS)

    threads = [threading.Thread(target=ask) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def _stream(router: str, prompt: str, tokens: int) -> None:
    body = {"model": "sim", "prompt": prompt, "max_tokens": tokens, "stream": True}
    head = {"Content-Type": "application/json"}
    asked = urllib.request.Request(f"{router}/v1/completions", json.dumps(body).encode(), head)
    gone = (OSError, http.client.HTTPException)  # also in the midst of an answer
    with contextlib.suppress(*gone), urllib.request.urlopen(asked, timeout=SECONDS) as response:
        response.read()
