"""Which streams can be continued by another engine after their first token.

An engine continues an answer exactly if what it computes depends on the token ids so far alone, and
if the client can be shown the rest as if one engine had made it. Source of each rule:
docs/continuation.md, measured on vLLM 0.32.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from router.core.request_facts import Facts
from router.core.values import CHAT, COMPLETIONS, RouteKind
from router.core.wire.contents import has_media
from router.core.wire.tokens import prompts

__all__ = ["LIMITS", "refusal"]

KINDS: Final[frozenset[RouteKind]] = frozenset({CHAT, COMPLETIONS})
"""The APIs whose engines return token ids. /v1/responses and /v1/messages do not."""

GRAMMARS: Final = (
    "structured_outputs",
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structural_tag"),
)
"""Members that constrain the output by a grammar; the later ones before vLLM 0.12."""

RESTRICTING: Final = frozenset(GRAMMARS) | {
    *("n", "best_of", "use_beam_search", "echo", "logprobs", "store", "stop", "seed"),
    *("presence_penalty", "frequency_penalty", "response_format", "return_token_ids"),
}
"""All members that `_RULES` reads."""

LIMITS: Final = ("max_tokens", "max_completion_tokens", "min_tokens")
"""Members that count generated tokens, from which the tokens so far are subtracted."""


def refusal(facts: Facts, *, takes_chats: bool = True) -> str | None:
    """Why a stream cannot be continued; None if it can. `takes_chats`: whether the engines take a
    chat's token ids.

    What shows only in the answer (a tool call has begun, the engine returns no ids) is the
    journal's to find.
    """
    if facts.route.kind not in KINDS:
        return "api"
    if facts.route.kind is CHAT and not takes_chats:
        return "old_engine"
    if facts.lead or facts.prefill or not facts.body:
        return "large_body"
    if facts.forces_tool:
        return "forced_tool"
    if facts.route.kind is COMPLETIONS and len(prompts(facts.body.get("prompt"))) > 1:
        return "several_answers"
    if has_media(facts):
        return "media"
    body = facts.body
    if _has_odd_limit(body):
        return "limits"
    if RESTRICTING.isdisjoint(body):  # as most bodies
        return None
    return next((reason for reason, applies in _RULES if applies(body)), None)


def _is_many(value: object) -> bool:
    """Whether `n` or `best_of` asks for more than one answer, in whatever form vLLM accepts."""
    return value not in (None, 1, "1", True)


def _is_structured(body: Mapping[str, Any]) -> bool:
    """Whether a grammar constrains the output: it would start anew on the next engine."""
    given = body.get("response_format")
    if given is not None and not (isinstance(given, dict) and given.get("type") == "text"):
        return True
    return any(body.get(name) is not None for name in GRAMMARS)


def _has_seed(body: Mapping[str, Any]) -> bool:
    """Whether the client asks for reproducible samples: the generator would start anew."""
    return body.get("seed") is not None and body.get("temperature") not in (0, 0.0)


def _has_odd_limit(body: Mapping[str, Any]) -> bool:
    """Whether a limit is of a form that cannot be reduced, such as "16"."""
    return any(type(body.get(name, 0)) not in (int, type(None)) for name in LIMITS)


_RULES: Final[tuple[tuple[str, Callable[[Mapping[str, Any]], bool]], ...]] = (
    # Ids of tokens whose text is held back have been sent, and would come twice.
    ("token_ids", lambda body: bool(body.get("return_token_ids"))),
    ("several_answers", lambda body: _is_many(body.get("n")) or _is_many(body.get("best_of"))),
    ("beam_search", lambda body: bool(body.get("use_beam_search"))),
    ("echo", lambda body: bool(body.get("echo"))),
    # Entries of tokens whose text is held back have been sent, and would come twice.
    ("logprobs", lambda body: body.get("logprobs") not in (None, False)),
    ("stored", lambda body: bool(body.get("store"))),
    # These two count generated tokens only, and the next engine takes those for its prompt.
    ("penalties", lambda body: bool(body.get("presence_penalty") or body.get("frequency_penalty"))),
    # A string across the seam would be missed.
    ("stop_strings", lambda body: bool(body.get("stop"))),
    ("structured_output", _is_structured),
    ("seed", _has_seed),
)
