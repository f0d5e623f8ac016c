"""The one parse of a request: from bytes to `Facts`.

The body's bytes are forwarded as the client sent them, unless they hold KV transfer keys: those are
removed, and the body is serialised again.
"""

import math
import re
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Final

import orjson

from router.core.errors import BadRequest
from router.core.values import COMPLETIONS, Facts, Route
from router.core.wire import tokens
from router.core.wire.token_ratios import MIN_BYTES, learnable_bytes

__all__ = ["TRANSFER_KEYS", "read"]

TRANSFER_KEYS: Final = frozenset({"kv_transfer_params", "ec_transfer_params"})
"""They choose the host that a decode engine connects to and the blocks it reads: only the router
may set them (server-side request forgery otherwise; see vLLM's VLLM_P2P_MAX_PEERS note)."""

MAX_MODEL_CHARACTERS = 512
"""Of a name that is logged and told to the client; file systems allow 255."""


def read(route: Route, content_type: bytes, raw: bytes, query: bytes = b"") -> Facts:
    """Read a request's body. Raises BadRequest when it must be a JSON object and is not."""
    if not route.generates:
        return _pass_through(route, content_type, raw, query)
    body, reason = _json_object(raw), None
    if not _SPECIAL_KEYS.isdisjoint(body):  # hardly ever
        if _has_transfer_keys(body):
            body = _without_transfer_keys(body)
            raw = _dumps(body)
        reason = _direct_reason(body)
    if route.kind is COMPLETIONS:
        prompt = body.get("prompt")
        if isinstance(prompt, list) and len(tokens.prompts(prompt)) > 1:
            reason = "several_prompts"
    # In this order: names would cost as much as all the rest of making it.
    size, rule, text_bytes = tokens.estimate(route.kind, body)
    is_stream = body.get("stream") is True
    facts = Facts(route, _model(body), is_stream, size, rule, reason, raw, body, query, text_bytes)
    if text_bytes >= MIN_BYTES:
        facts.learnable_bytes = learnable_bytes(facts)
    return facts


def _pass_through(route: Route, content_type: bytes, raw: bytes, query: bytes) -> Facts:
    """Only the model is read, from JSON or from a multipart field."""
    model = None
    content_type = content_type.lower()
    if b"json" in content_type:
        body = _json_object(raw)
        model = _model(body)
        if _has_transfer_keys(body):
            raw = _dumps(_without_transfer_keys(body))
    elif b"multipart/form-data" in content_type:
        model = _multipart_model(raw)
    return Facts(route, model, False, 0, tokens.NONE, "route", raw, query=query)


def _json_object(raw: bytes) -> dict[str, Any]:
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"The body is not valid JSON: {error}", "body") from None
    if not isinstance(body, dict):
        raise BadRequest("The body must be a JSON object.", "body")
    return body


def _dumps(body: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(body)
    except orjson.JSONEncodeError:  # it writes 254 levels and reads 1024
        raise BadRequest("The body is nested too deeply.", "body") from None


def _model(body: Mapping[str, Any]) -> str | None:
    model = body.get("model")
    if model is None:
        return None
    if not isinstance(model, str):
        raise BadRequest("`model` must be a string.", "model")
    if len(model) > MAX_MODEL_CHARACTERS:
        raise BadRequest("`model` is too long.", "model")
    return model


# A literal beginning is searched for ten times faster than one of any case: recordings are large.
_MODEL_NAME: Final = re.compile(rb'name="?model"?[ \t]*\r\n')
_BEFORE_NAME: Final = re.compile(rb"content-disposition:[ \t]*form-data;[ \t]*\Z", re.IGNORECASE)
MAX_BEFORE_NAME: Final = 64
"""Bytes in which that stands."""

MAX_MODEL_NAMES: Final = 64
"""Places with that name that are looked at: a recording has none."""

# A part has few headers, and short ones. Without limits, and without the possessive `+`, which
# forbids to try again with fewer of them, a megabyte of such lines takes minutes.
_PART_VALUE: Final = re.compile(rb"(?:[^\r\n]{1,4096}\r\n){0,4}+\r\n([^\r\n]{1,512})\r\n")

MAX_MODEL_PARTS: Final = 8
"""Parts of that name that are looked at, before one has a value: a client sends one."""


def _multipart_model(raw: bytes) -> str | None:
    parts = (
        name.end()
        for name in islice(_MODEL_NAME.finditer(raw), MAX_MODEL_NAMES)
        if _BEFORE_NAME.search(raw, max(0, name.start() - MAX_BEFORE_NAME), name.start())
    )
    for end in islice(parts, MAX_MODEL_PARTS):
        found = _PART_VALUE.match(raw, end)
        if found is not None:
            return found.group(1).decode(errors="replace")
    return None


def _has_transfer_keys(body: Mapping[str, Any]) -> bool:
    if not TRANSFER_KEYS.isdisjoint(body):
        return True
    xargs = body.get("vllm_xargs")
    return isinstance(xargs, dict) and not TRANSFER_KEYS.isdisjoint(xargs)


def _without_transfer_keys(body: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in body.items() if key not in TRANSFER_KEYS}
    if isinstance(xargs := kept.get("vllm_xargs"), dict):
        kept["vllm_xargs"] = {k: v for k, v in xargs.items() if k not in TRANSFER_KEYS}
    return kept


def _direct_reason(body: Mapping[str, Any]) -> str | None:
    """Why the request must not be disaggregated; the names are those of the logs and metrics.

    Several answers share one KV reference, which may be read once only (vllm#43509, CVE-2026-94623
    for prompt lists); prompt logprobs need the prompt computed where they are returned
    (vllm#27449); beam search ignores the reference; stored responses live in one engine's memory.
    One token is no call of a forced tool (vllm#38911: 400 or 500), and any other `tool_choice` may
    change the prompt: chat templates see it, and vLLM may leave out the tools.
    """
    return next((reason for reason, applies in _DIRECT_RULES if applies(body)), None)


def _number(value: Any) -> float:
    """vLLM's request models are lax: "2" is a number there. NaN, neither more nor less than any
    number, for what is none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def _truncates(body: Mapping[str, Any]) -> bool:
    """To what fits with `max_tokens`, which differs on the prefill leg. /v1/responses takes null
    for "auto"."""
    is_left_to_vllm = _number(body.get("truncate_prompt_tokens")) < 0
    return is_left_to_vllm or body.get("truncation", "disabled") != "disabled"


def _echo_has_logprobs(body: Mapping[str, Any]) -> bool:
    """vLLM makes prompt logprobs of a completion's `logprobs` (0 is a number of them) and of a
    chat's `top_logprobs`, which is 0 unless the client says null."""
    given = body.get("top_logprobs", 0) if "messages" in body else body.get("logprobs")
    return given is not None and given is not False


def _forces_a_tool(choice: object) -> bool:
    """In the spelling of any route: "required", {"type": "any"}, or the tool's name."""
    if isinstance(choice, dict):
        return choice.get("type") not in ("auto", "none")
    return choice in ("required", "any")


_DIRECT_RULES: tuple[tuple[str, Callable[[Mapping[str, Any]], bool]], ...] = (
    ("several_answers", lambda body: _number(body.get("n")) > 1),
    ("best_of", lambda body: _number(body.get("best_of")) > 1),
    ("beam_search", lambda body: bool(body.get("use_beam_search"))),
    # Each embedding is one more prompt, and its tokens are not counted.
    ("prompt_embeds", lambda body: body.get("prompt_embeds") is not None),
    ("prompt_logprobs", lambda body: body.get("prompt_logprobs") is not None),
    ("echo_logprobs", lambda body: bool(body.get("echo")) and _echo_has_logprobs(body)),
    ("stored_response", lambda body: body.get("previous_response_id") is not None),
    ("background", lambda body: bool(body.get("background"))),
    ("truncation", _truncates),
    ("forced_tool", lambda body: _forces_a_tool(body.get("tool_choice"))),
)

_SPECIAL_KEYS: Final = TRANSFER_KEYS | {
    *("vllm_xargs", "n", "best_of", "use_beam_search", "prompt_embeds", "prompt_logprobs", "echo"),
    *("previous_response_id", "background", "tool_choice"),
    *("truncate_prompt_tokens", "truncation"),
}
"""A body without them has nothing to be removed, and no rule applies to it."""
