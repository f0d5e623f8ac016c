"""Finds the last token whose text the client has, where several tokens came in one event.

The next engine decodes the last tokens (vLLM's `/detokenize`). If their text ends as that of the
event does, the last one of them is found. Otherwise it is left out: it begins a character that is
not complete, or a parser holds it back.
"""

from collections.abc import Generator
from typing import Any, Final

from router.core.continuation.journal import Journal
from router.core.errors import EngineFailed
from router.core.plans.steps import Call, Lease, Outcome, Release, Step
from router.core.values import DECODE, Endpoint, Reply
from router.core.wire.jsonspan import engine_json, with_member

__all__ = ["find_seam"]

PATH: Final = "/detokenize"

ENGINES: Final = 2
"""Engines that are asked at most: the first one may be dead too."""

MAX_LEFT_OUT: Final = 3
"""Tokens that are left out at most: a character has at most four bytes, and a token at least
one."""

REPLACEMENT: Final = "\ufffd"
"""In place of bytes that are no character. Those at the end of the client's text may be followed by
others that are held back."""


def find_seam(journal: Journal) -> Generator[Step, Any, None]:
    """Make the journal forget the tokens behind the last one whose text the client has. Raises
    EngineFailed if no engine shows which that is, and NoEngine if there is none to ask."""
    text, asked = journal.last_text, journal.engines
    for _ in range(ENGINES):
        endpoint = yield Lease(DECODE, asked, computes=False, is_attempt=False)
        asked |= {endpoint}
        left_out = yield from _held_back(endpoint, journal, text)
        yield Release(endpoint)
        if left_out is not None:
            journal.forget(left_out)
            return
    journal.broken = "several_tokens"
    raise EngineFailed("The engine failed, and another one cannot go on behind its last token.")


def _held_back(endpoint: Endpoint, journal: Journal, text: str) -> Generator[Step, Any, int | None]:
    """How many of the last tokens have no part in `text`; None if the engine does not show it."""
    if not text or text.endswith(REPLACEMENT):
        return None
    for left_out in range(1 + MAX_LEFT_OUT):
        ids = journal.last_ids(left_out)
        if ids is None:
            return None
        body = with_member(b'{"tokens":[%b]}' % ids, "model", journal.model)
        outcome: Outcome = yield Call(endpoint, PATH, body, is_prefill=False)
        if not isinstance(outcome, Reply) or outcome.status != 200:
            return None
        if _decoded(outcome).endswith(text):
            return left_out
    return None


def _decoded(reply: Reply) -> str:
    """The text in a /detokenize reply; empty if there is none."""
    try:
        text = engine_json(reply.body)["prompt"]
    except (ValueError, LookupError, TypeError):
        return ""
    return text if isinstance(text, str) else ""
