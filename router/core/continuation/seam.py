"""Finds the token behind which another engine goes on, where the last event does not show it.

The next engine decodes the last tokens (vLLM's `/detokenize`). If their text ends as that of the
event does, the last one of them is found. Otherwise it is left out: it begins a character that is
not complete, or a parser holds it back.

An engine with stop strings holds back as many characters as the longest one has, less one, so that
no string begins in what it delivers (vLLM's `get_next_output_text`). The router delivers those
characters if no string begins in them; else it leaves out the tokens from that string on.
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

MAX_STOP_TOKENS: Final = 8
"""Tokens more that are left out because they may begin a stop string; most strings are shorter."""

REPLACEMENT: Final = "\ufffd"
"""In place of bytes that are no character. Those at the end of the client's text may be followed by
others that are held back."""


def find_seam(journal: Journal, asked: frozenset[Endpoint]) -> Generator[Step, Any, None]:
    """Make the journal forget the tokens behind the last one whose text the client has. Raises
    EngineFailed if no engine shows which that is, and NoEngine if there is none to ask but those in
    `asked`."""
    text = journal.last_text
    is_shown = text and (journal.held or not text.endswith(REPLACEMENT))
    for _ in range(ENGINES if is_shown else 0):
        endpoint = yield Lease(DECODE, asked, computes=False, is_attempt=False)
        asked |= {endpoint}
        found = yield from _place(endpoint, journal)
        yield Release(endpoint)
        if found is not None:
            left_out, lacking = found
            if left_out < 0:
                break
            journal.forget(left_out, lacking)
            return
    journal.broken = "stop_strings" if journal.held else "several_tokens"
    raise EngineFailed("The engine failed, and another one cannot go on behind its last token.")


def _place(endpoint: Endpoint, journal: Journal) -> Generator[Step, Any, tuple[int, str] | None]:
    """How many of the last tokens are to be left out, and what text of the others the client lacks.
    Fewer than none if no engine shows it, and None if another one may."""
    delivered, held = journal.last_text, journal.held
    end = -1
    """Where the delivered text ends in the decoded one; negative until it is found."""
    for left_out in range(1 + MAX_LEFT_OUT + min(held, MAX_STOP_TOKENS)):
        ids = journal.last_ids(left_out)
        if ids is None:
            break
        body = with_member(b'{"tokens":[%b]}' % ids, "model", journal.model)
        outcome: Outcome = yield Call(endpoint, PATH, body, is_prefill=False)
        if not isinstance(outcome, Reply) or outcome.status != 200:
            return None
        if not (text := _decoded(outcome)):
            return None
        if end < 0 and not (held and text.endswith(REPLACEMENT)):
            if text.endswith(delivered, 0, max(0, len(text) - held)):
                end = len(text) - held
            elif held:  # a parser holds back more, and where that begins is not known
                break
        is_whole = not text.endswith(REPLACEMENT)  # else the next engine streams the prompt
        if 0 <= end <= len(text) <= end + held and is_whole:
            lacking = text[end:]
            if not _may_begin(lacking, journal.stops):
                return left_out, lacking
    return -1, ""


def _may_begin(text: str, stops: tuple[str, ...]) -> bool:
    """Whether text ends in what may be the beginning of a stop string."""
    return any(text.endswith(stop[:size]) for stop in stops for size in range(1, len(stop)))


def _decoded(reply: Reply) -> str:
    """The text in a /detokenize reply; empty if there is none."""
    try:
        text = engine_json(reply.body)["prompt"]
    except (ValueError, LookupError, TypeError):
        return ""
    return text if isinstance(text, str) else ""
