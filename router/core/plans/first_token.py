"""LMCache: the prefill engine samples the first token, and the decode engine continues after it.

Decides which requests qualify, and writes the bodies for both engines. For the decode engine the
first token is part of the prompt, so the result is only exact for parameters that treat prompt and
output tokens alike. For all other requests the decode engine gets the client's own body.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from router.core.request_facts import Facts
from router.core.values import Reply, RouteKind
from router.core.wire.jsonspan import engine_json
from router.core.wire.tokens import prompts

__all__ = [
    "Sampled",
    "decode_body",
    "is_exact",
    "limit",
    "own_tokens",
    "prefill_body",
    "read_sampled",
    "read_tokens",
    "tokenize_body",
]

DEFAULT_LIMIT = 16
"""vLLM's default for max_tokens on /v1/completions."""


def _is_whole(value: object, least: int) -> bool:
    """Whether it is an integer of at least `least`. vLLM also accepts "8" and 8.0; such requests
    are not split."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_ids(prompt: object) -> bool:
    return isinstance(prompt, list) and bool(prompt) and all(_is_whole(i, 0) for i in prompt)


def _is_one_prompt(prompt: object) -> bool:
    given = prompts(prompt)
    return len(given) == 1 and (isinstance(given[0], str) or _is_ids(given[0]))


def _are_stops(ids: object) -> bool:
    return ids is None or ids == [] or _is_ids(ids)


def _are_usage_options(options: object) -> bool:
    if options is None:
        return True
    return isinstance(options, dict) and all(
        key in ("include_usage", "continuous_usage_stats") and _is_flag(value)
        for key, value in options.items()
    )


# Parameters that affect each token independently, or not at all. Any scalar value is passed to both
# engines, which validate it. repetition_penalty treats prompt and output tokens alike (vLLM's
# apply_repetition_penalties uses the union of their masks).
_ALIKE = frozenset(
    {
        "model",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "ignore_eos",
        "user",
        "priority",
        "cache_salt",
        "seed",  # only with temperature 0, see `is_exact`
    }
)

# Parameters that are read or rewritten here, and the accepted values. `max_tokens: null` is not
# accepted: older engines take it for "no limit", newer ones for 16.
_SUPPORTED: Mapping[str, Callable[[object], bool]] = {
    "prompt": _is_one_prompt,
    "max_tokens": lambda value: _is_whole(value, 1),
    "min_tokens": lambda value: _is_whole(value, 0),
    "stop_token_ids": _are_stops,
    "n": lambda value: value == 1,
    "add_special_tokens": _is_flag,
    "skip_special_tokens": lambda value: value is True,
    "stream": lambda value: value is None or _is_flag(value),
    "stream_options": _are_usage_options,
}

# Parameters that must be off, with the values that mean off and that clients send by default.
# Penalties on output tokens would miss the first token, a stop string may begin in it, echo would
# repeat it, and so on.
_OFF: Mapping[str, tuple[object, ...]] = {
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "stop": (None, []),
    "include_stop_str_in_output": (False,),
    "echo": (None, False),
    "suffix": (None,),
    "logprobs": (None,),
    "prompt_logprobs": (None,),
    "logit_bias": (None, {}),
    "best_of": (None, 1),
    "use_beam_search": (False,),
    "response_format": (None,),
    "structured_outputs": (None,),
    "return_token_ids": (None, False),
    "truncate_prompt_tokens": (None,),
}


def is_exact(facts: Facts) -> bool:
    """Whether splitting the request after its first token leaves the answer unchanged."""
    body = facts.body
    return (
        facts.route.kind is RouteKind.COMPLETIONS
        and "prompt" in body
        and all(_is_fit(key, value) for key, value in body.items())
        # The decode engine would restart the seeded generator.
        and (body.get("seed") is None or body.get("temperature") == 0)
        # These two are errors that the prefill engine would not detect.
        and body.get("min_tokens", 0) <= limit(body)
        and (body.get("stream_options") is None or facts.stream)
    )


def _is_fit(key: str, value: object) -> bool:
    if key in _SUPPORTED:
        return _SUPPORTED[key](value)
    if key in _ALIKE:
        return not isinstance(value, dict | list)
    return value in _OFF.get(key, ())


def limit(body: Mapping[str, Any]) -> int:
    """The request's max_tokens, or vLLM's default."""
    wanted: int = body.get("max_tokens", DEFAULT_LIMIT)
    return wanted


# Request bodies.


def own_tokens(body: Mapping[str, Any]) -> list[int] | None:
    """The client's prompt if it consists of token ids; None if it is text."""
    prompt = prompts(body["prompt"])[0]
    return prompt if isinstance(prompt, list) else None


def tokenize_body(body: Mapping[str, Any]) -> bytes:
    """The /tokenize request for a text prompt."""
    kept = {key: body[key] for key in ("model", "add_special_tokens") if key in body}
    return orjson.dumps({**kept, "prompt": prompts(body["prompt"])[0]})


def read_tokens(reply: Reply) -> list[int] | None:
    """The token ids in a /tokenize reply; None if there are none."""
    tokens = _object(reply.body).get("tokens") if reply.status == 200 else None
    return tokens if isinstance(tokens, list) and _is_ids(tokens) else None


def prefill_body(body: Mapping[str, Any], tokens: list[int]) -> dict[str, Any]:
    """The prefill request: one token, sampled with the client's parameters, because the client gets
    it."""
    asked = _with_prompt(body, tokens) | {"max_tokens": 1, "stream": False}
    asked.pop("stream_options", None)  # 400 without `stream`
    if asked.pop("min_tokens", 0):
        asked["min_tokens"] = 1
    return asked


def decode_body(body: Mapping[str, Any], tokens: list[int], first: int) -> dict[str, Any]:
    """The decode request, with max_tokens and min_tokens reduced by one."""
    asked = _with_prompt(body, [*tokens, first]) | {"max_tokens": limit(body) - 1}
    if "min_tokens" in asked:
        asked["min_tokens"] = max(asked["min_tokens"] - 1, 0)
    return asked


def _with_prompt(body: Mapping[str, Any], tokens: list[int]) -> dict[str, Any]:
    """Replace the prompt by token ids. `add_special_tokens` was applied by /tokenize."""
    kept = {key: value for key, value in body.items() if key != "add_special_tokens"}
    return kept | {"prompt": tokens}


# The prefill engine's reply.

REPLACEMENT = "\ufffd"


@dataclass(frozen=True, slots=True)
class Sampled:
    """The first token, as given in the prefill engine's reply."""

    document: dict[str, Any]
    token: int | None
    """None if LMCache did not report it."""
    text: str
    finish: str | None

    def ends(self, most: int) -> bool:
        """Whether the token is the whole answer: it ends the sequence, or `most` (max_tokens) is
        1."""
        return self.finish == "stop" or (self.finish == "length" and most == 1)

    @property
    def goes_on(self) -> bool:
        """Whether a decode engine can continue. An aborted prefill has the finish reason
        "abort"."""
        return self.finish == "length" and self.token is not None

    @property
    def is_shown(self) -> bool:
        """Whether the token's text can be sent on its own.

        vLLM holds back the first bytes of a multi-byte character, so the text is empty. If the
        prompt ends within a character, the engine repeats the whole prompt with it (tokenizers'
        DecodeStream).
        """
        return bool(self.text) and REPLACEMENT not in self.text


def read_sampled(reply: Reply) -> Sampled | None:
    """Parse the reply to a `prefill_body`. None if it is not such a reply."""
    document = _object(reply.body)
    try:
        choice = document["choices"][0]
        text, finish = choice["text"], choice["finish_reason"]
    except (LookupError, TypeError):
        return None
    params = document.get("kv_transfer_params")
    token = params.get("first_tok") if isinstance(params, dict) else None
    known = token if _is_whole(token, 0) and isinstance(token, int) else None
    return Sampled(document, known, text if isinstance(text, str) else "", finish)


def _object(data: bytes) -> dict[str, Any]:
    """Parse a JSON object; an empty one for anything else."""
    try:
        document = engine_json(data)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
