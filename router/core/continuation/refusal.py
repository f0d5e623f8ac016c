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

__all__ = ["LIMITS", "is_structured", "refusal", "stop_strings"]

KINDS: Final[frozenset[RouteKind]] = frozenset({CHAT, COMPLETIONS})
"""The APIs whose engines return token ids. /v1/responses and /v1/messages do not."""

MAX_STOPS: Final = 16
"""Stop strings of a stream that may be continued. OpenAI allows four."""

MAX_STOP: Final = 256
"""Their characters, each."""

_BESIDE_STOPS: Final = ("include_stop_str_in_output", "tools", "ignore_eos")

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
    if facts.route.kind is COMPLETIONS and is_structured(facts.body):
        return "structured_output"
    return _restriction(facts.body)


def is_structured(body: Mapping[str, Any]) -> bool:
    """Whether a grammar constrains the answer, apart from its reasoning."""
    if _GRAMMARS.keys().isdisjoint(body):  # nearly always
        return False
    return any(rule(body[name]) for name, rule in _GRAMMARS.items() if name in body)


def stop_strings(body: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The strings that end the answer and are not part of it. None if engines cannot go on with
    them: they hold no text back, or its text is not that of the tokens (of tool calls and of
    special tokens), or it is too long to be searched."""
    given = body.get("stop")
    if not given:
        return ()
    found = (given,) if isinstance(given, str) else given
    if any(body.get(name) for name in _BESIDE_STOPS) or not isinstance(found, list | tuple):
        return None
    if len(found) > MAX_STOPS or not all(isinstance(s, str) and len(s) <= MAX_STOP for s in found):
        return None
    return tuple(found)


def _restriction(body: Mapping[str, Any]) -> str | None:
    """Why a body cannot be continued."""
    for name in LIMITS:
        if type(body.get(name, 0)) not in (int, type(None)):  # such as "16"
            return "limits"
    if body.get("seed") is not None and body.get("temperature") not in (0, 0.0):
        return "seed"  # the generator would start anew
    if "stop" in body and stop_strings(body) is None:
        return "stop_strings"
    for name, value in body.items():
        rule = _RULES.get(name)
        if rule is not None and rule[1](value):
            return rule[0]
    return None


def _is_many(value: object) -> bool:
    """Whether `n` or `best_of` asks for more than one answer, in whatever form vLLM accepts."""
    return value not in (None, 1, "1", True)


def _is_no_text(value: object) -> bool:
    """Whether a `response_format` constrains the output."""
    return value is not None and not (isinstance(value, dict) and value.get("type") == "text")


def _is_given(value: object) -> bool:
    return value is not None


_RULES: Final[dict[str, tuple[str, Callable[[Any], bool]]]] = {
    "n": ("several_answers", _is_many),
    "best_of": ("several_answers", _is_many),
    "use_beam_search": ("beam_search", bool),
    "echo": ("echo", bool),
    # Ids and log probabilities of tokens whose text is held back have been sent, and would come
    # twice.
    "return_token_ids": ("token_ids", bool),
    "logprobs": ("logprobs", lambda value: value not in (None, False)),
    "store": ("stored", bool),
    # These two count generated tokens only, and the next engine takes those for its prompt.
    "presence_penalty": ("penalties", bool),
    "frequency_penalty": ("penalties", bool),
}
"""By member of the body: the reason, and whether its value is one."""

_GRAMMARS: Final[dict[str, Callable[[Any], bool]]] = {
    "response_format": _is_no_text,
    "structured_outputs": _is_given,
    # Before vLLM 0.12.
    "guided_json": _is_given,
    "guided_regex": _is_given,
    "guided_choice": _is_given,
    "guided_grammar": _is_given,
    "structural_tag": _is_given,
}
"""By member of the body: whether its value constrains the output."""
