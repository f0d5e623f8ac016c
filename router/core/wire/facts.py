"""Reads an inference request: checks its head, and parses its body, once, into `Facts`.

The body is forwarded as the client sent it, unless it contains KV transfer keys. These are removed,
and the body is serialised again.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from router.core.errors import BadRequest, BodyTooLarge, LengthRequired, MethodNotAllowed
from router.core.request_facts import DEFAULT_IMAGE_RULE, NO_BODY, Facts, ImageRule, ImageRules
from router.core.values import CHAT, COMPLETIONS, GENERATE, RESPONSES, Route, RouteKind
from router.core.wire import multipart, tokens
from router.core.wire.headers import NAMES_HOSTS
from router.core.wire.jsonspan import value_end, with_member
from router.core.wire.media import is_fetched
from router.core.wire.tokens import MIN_BYTES, learnable_bytes

__all__ = [
    "TRANSFER_KEYS",
    "TRUE_WORDS",
    "check_head",
    "check_size",
    "declared_size",
    "read",
    "set_model",
]

MAX_DIGITS = 20
"""Of a Content-Length: as many as 64 bits have."""


def check_head(
    method: bytes, path: str, fields: Mapping[bytes, bytes], max_body_bytes: int
) -> None:
    """Raise the RouterError for an inference request's head that cannot be accepted. `fields`: its
    headers by lower-case name."""
    if method != b"POST":
        raise MethodNotAllowed(f"{path} takes POST, not {method.decode()}.")
    length = fields.get(b"content-length")
    if length is None and b"transfer-encoding" not in fields:
        raise LengthRequired("A body is required: send Content-Length or chunked encoding.")
    if length is not None:
        if not length.isdigit() or len(length) > MAX_DIGITS:
            raise BadRequest("Content-Length is not a number.")
        check_size(int(length), max_body_bytes)


def declared_size(fields: Mapping[bytes, bytes]) -> int:
    """The Content-Length, which `check_head` has accepted; 0 without one."""
    return int(fields.get(b"content-length", b"0"))


def check_size(size: int, limit: int) -> None:
    """Raise BodyTooLarge for a body of more than `limit` bytes."""
    if size > limit:
        raise BodyTooLarge(f"The body is larger than {limit} bytes.")


TRANSFER_KEYS: Final = frozenset({"kv_transfer_params", "ec_transfer_params"})
"""Keys that choose the host which a decode engine connects to, and the blocks that it reads. Only
the router may set them, otherwise clients could forge requests of the engine (SSRF; see vLLM's note
on VLLM_P2P_MAX_PEERS)."""

BUILTIN_TOOLS: Final = ("web_search_preview", "code_interpreter", "container", "mcp")
"""Types of tools that vLLM calls itself (entrypoints/openai/responses/serving.py)."""

END_BYTES: Final = 1024
"""Bytes at the end of a large body that are copied, so that a plan can add a member there."""

TRUE_WORDS: Final = frozenset({"1", "on", "t", "true", "y", "yes"})
"""Strings that mean true, in any case: https://docs.pydantic.dev/latest/api/standard_library_types/#booleans"""

MODEL_NAME: Final = b'"model"'

MAX_MODEL_CHARACTERS = 512
"""Longest model name in characters that is logged and returned to clients; file systems allow
255."""


def read(
    route: Route,
    content_type: bytes,
    raw: bytes | memoryview,
    query: bytes = b"",
    image_rules: ImageRules | None = None,
) -> Facts:
    """Parse a request's body. Raises BadRequest if it must be a JSON object and is not. Of a view
    only the end is copied."""
    if not route.generates:
        return _pass_through(route, content_type, bytes(raw), query)
    body, reason, forces_tool = _json_object(raw), None, False
    if not _SPECIAL_KEYS.isdisjoint(body):  # rarely
        body, raw, reason, forces_tool = _read_special(route.kind, body, raw)
    # Of a chat with one list, the messages, each content is a string.
    is_plain = (
        route.kind is CHAT and isinstance(raw, bytes) and raw.find(b"[", raw.find(b"[") + 1) < 0
    )
    if reason is None and not is_plain:
        reason = _reason_of_prompt(route.kind, body)
    lead: tuple[memoryview, ...] = ()
    if not isinstance(raw, bytes):
        lead, raw = _cut(raw)
    model = _model(body)
    image_rule = DEFAULT_IMAGE_RULE if image_rules is None else _image_rule(image_rules, model)
    size, rule, text_bytes, media = tokens.estimate(route.kind, body, image_rule)
    stream = body.get("stream")
    is_stream = stream is True or (bool(stream) and _is_true(stream))
    # Positional arguments: keyword arguments would cost as much as the rest of the construction.
    facts = Facts(route, model, is_stream, size, rule, reason, raw, body, query, text_bytes)
    facts.forces_tool = forces_tool
    if lead:
        facts.lead = lead
    if text_bytes >= MIN_BYTES or media:
        facts.media_tokens, facts.image_rule = media, image_rule
        facts.learnable_bytes = learnable_bytes(facts)
    return facts


def _read_special(
    kind: RouteKind, body: dict[str, Any], raw: bytes | memoryview
) -> tuple[dict[str, Any], bytes | memoryview, str | None, bool]:
    """A body with any of `_SPECIAL_KEYS` without transfer keys, as it is then written, why it must
    not be disaggregated, and whether it forces a tool."""
    if _has_transfer_keys(body):
        body = _without_transfer_keys(body)
        raw = _dumps(body)
    if kind is RESPONSES:
        _check_response_id(body.get("request_id"))
    reason = _direct_reason(_sampling(body) if kind is GENERATE else body)
    return body, raw, reason, _forces_a_tool(body.get("tool_choice"))


def set_model(facts: Facts, model: str) -> None:
    """Let a request ask for `model`; what the client wrote becomes its alias. Raises BadRequest for
    a form.

    The name is replaced where its place is certain, otherwise the body is serialised again. A body
    that was parsed by another process gets a second member, of which the last counts.
    """
    facts.alias, facts.model = facts.model, model
    value = orjson.dumps(model)
    if facts.route.generates and "model" not in facts.body:
        facts.raw = with_member(facts.raw, "model", value)
        if facts.prefill:
            facts.prefill = (*facts.prefill[:-1], with_member(facts.prefill[-1], "model", value))
        return
    raw = b"".join((*facts.lead, facts.raw))
    if not raw.lstrip().startswith(b"{"):
        raise BadRequest("`model` cannot be an alias in a form.", "model")
    body = facts.body or _json_object(raw)
    facts.raw = _with_model(raw, value) or _dumps({**body, "model": model})
    facts.lead = ()
    if facts.body:
        facts.body = {**facts.body, "model": model}


def _with_model(raw: bytes, value: bytes) -> bytes | None:
    """A body that has a model, with another one; None if its place is not certain."""
    start = raw.find(MODEL_NAME)
    if start < 0 or raw.find(MODEL_NAME, start + 1) >= 0 or raw.find(b"\\u") >= 0:
        return None
    start = raw.find(b":", start) + 1
    while raw[start : start + 1].isspace():
        start += 1
    return raw[:start] + value + raw[value_end(raw, start) :]


def _is_true(value: object) -> bool:
    """Whether vLLM takes a value that is not `true` for it, as pydantic does by default."""
    return value.lower() in TRUE_WORDS if isinstance(value, str) else value == 1


def _pass_through(route: Route, content_type: bytes, raw: bytes, query: bytes) -> Facts:
    """Read only the model, from JSON or from a multipart field."""
    model = None
    kind = content_type.lower()
    if kind.lstrip().startswith(b"multipart/form-data"):
        if value := multipart.field(content_type, raw, b"model"):
            model = _model({"model": value.decode(errors="replace")})
    elif b"json" in kind:
        body = _json_object(raw)
        model = _model(body)
        if _has_transfer_keys(body):
            raw = _dumps(_without_transfer_keys(body))
    return Facts(route, model, False, 0, tokens.NONE, "route", raw, query=query)


def _cut(view: memoryview) -> tuple[tuple[memoryview, ...], bytes]:
    """A JSON object in two pieces, the last of which decides how a member is added: after a comma,
    before the brace."""
    end = bytes(view[-END_BYTES:])
    if not end.strip(b" \t\r\n}"):
        return (), bytes(view)
    return (view[:-END_BYTES],), end


def _json_object(raw: bytes | memoryview) -> dict[str, Any]:
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
    except orjson.JSONEncodeError:  # orjson writes 254 levels and parses 1024
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


def _image_rule(rules: ImageRules, model: str | None) -> ImageRule:
    return DEFAULT_IMAGE_RULE if model is None else rules.get(model, DEFAULT_IMAGE_RULE)


def _has_transfer_keys(body: Mapping[str, Any]) -> bool:
    if not TRANSFER_KEYS.isdisjoint(body):
        return True
    places = (body.get("vllm_xargs"), _sampling(body).get("extra_args"))
    return any(isinstance(each, dict) and not TRANSFER_KEYS.isdisjoint(each) for each in places)


def _sampling(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The `sampling_params` of /inference/v1/generate."""
    found = body.get("sampling_params")
    return found if isinstance(found, dict) else NO_BODY


def _check_response_id(given: object) -> None:
    """Engines take this id, unlike those of other routes, instead of the router's X-Request-Id."""
    if isinstance(given, str) and NAMES_HOSTS in given:
        raise BadRequest(f"`request_id` must not contain {NAMES_HOSTS}.", "request_id")


def _without_transfer_keys(body: Mapping[str, Any]) -> dict[str, Any]:
    kept = _cleaned(body)
    if isinstance(xargs := kept.get("vllm_xargs"), dict):
        kept["vllm_xargs"] = _cleaned(xargs)
    sampling = _sampling(kept)
    if isinstance(extra := sampling.get("extra_args"), dict):
        kept["sampling_params"] = {**sampling, "extra_args": _cleaned(extra)}
    return kept


def _cleaned(members: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in members.items() if key not in TRANSFER_KEYS}


def _direct_reason(body: Mapping[str, Any]) -> str | None:
    """Why the request must not be disaggregated; the reasons appear in logs and metrics.

    Several choices would share one KV reference, which may be read only once (vllm#43509;
    CVE-2026-94623 for prompt lists). Prompt logprobs have to be computed where they are returned
    (vllm#27449). Beam search ignores the reference. Stored responses are kept in one engine's
    memory. An engine that calls tools itself uses the reference again with each call's result.
    """
    return next((reason for reason, applies in _DIRECT_RULES if applies(body)), None)


def _reason_of_prompt(kind: RouteKind, body: Mapping[str, Any]) -> str | None:
    if kind is COMPLETIONS:
        prompt = body.get("prompt")
        is_list = isinstance(prompt, list) and len(tokens.prompts(prompt)) > 1
        return "several_prompts" if is_list else None
    return "media_url" if is_fetched(body) else None


def _number(value: Any) -> float:
    """Convert a number as vLLM's lax request models do: "2" is a number there. NaN, which compares
    false with everything, for other values."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def _truncates(body: Mapping[str, Any]) -> bool:
    """Whether the prompt is truncated to what fits with `max_tokens`, which differs on the prefill
    leg. /v1/responses takes null for "auto"."""
    is_left_to_vllm = _number(body.get("truncate_prompt_tokens")) < 0
    return is_left_to_vllm or body.get("truncation", "disabled") != "disabled"


def _echo_has_logprobs(body: Mapping[str, Any]) -> bool:
    """Whether the prompt's logprobs are returned. vLLM does so for `echo` with a completion's
    `logprobs` (0 counts) or a chat's `top_logprobs`, which is 0 unless the client sends null."""
    given = body.get("top_logprobs", 0) if "messages" in body else body.get("logprobs")
    return given is not None and given is not False


def _forces_a_tool(choice: object) -> bool:
    """Whether a tool call is forced, in any API's form: "required", {"type": "any"}, or a tool's
    name."""
    if isinstance(choice, dict):
        return choice.get("type") not in ("auto", "none")
    return choice in ("required", "any")


def _has_builtin_tools(body: Mapping[str, Any]) -> bool:
    """Whether vLLM calls tools itself (`--tool-server`, /v1/responses)."""
    tools = body.get("tools")
    found = tools if "input" in body and isinstance(tools, list) else ()
    return any(isinstance(each, dict) and each.get("type") in BUILTIN_TOOLS for each in found)


_DIRECT_RULES: tuple[tuple[str, Callable[[Mapping[str, Any]], bool]], ...] = (
    ("several_answers", lambda body: _number(body.get("n")) > 1),
    ("best_of", lambda body: _number(body.get("best_of")) > 1),
    ("beam_search", lambda body: bool(body.get("use_beam_search"))),
    # Each embedding is a further prompt, whose tokens are not counted.
    ("prompt_embeds", lambda body: body.get("prompt_embeds") is not None),
    ("prompt_logprobs", lambda body: body.get("prompt_logprobs") is not None),
    ("echo_logprobs", lambda body: bool(body.get("echo")) and _echo_has_logprobs(body)),
    ("stored_response", lambda body: body.get("previous_response_id") is not None),
    ("background", lambda body: bool(body.get("background"))),
    ("builtin_tools", _has_builtin_tools),
    ("truncation", _truncates),
)

_SPECIAL_KEYS: Final = TRANSFER_KEYS | {
    *("vllm_xargs", "n", "best_of", "use_beam_search", "prompt_embeds", "prompt_logprobs", "echo"),
    *("previous_response_id", "background", "tool_choice", "tools", "request_id"),
    *("truncate_prompt_tokens", "truncation", "sampling_params"),
}
"""A body without any of these keys needs no change, and no rule applies to it."""
