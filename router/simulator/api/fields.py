"""Validates the form of a request's body: JSON, and the types that vLLM expects."""

import json
from collections.abc import Mapping
from typing import Any

import orjson

from router.simulator.api.errors import ApiError, not_valid, unsupported_media_type

_NUMBER = ((int, float), "float_type", "Input should be a valid number")
_WHOLE = ((int,), "int_type", "Input should be a valid integer")
_TRUTH = ((bool,), "bool_type", "Input should be a valid boolean")
_OBJECT = ((dict,), "dict_type", "Input should be a valid dictionary")
_LIST = ((list,), "list_type", "Input should be a valid list")
_TEXT = ((str,), "string_type", "Input should be a valid string")

_FORM: dict[str, tuple[tuple[type, ...], str, str]] = {
    "model": _TEXT,
    "messages": _LIST,
    "tools": _LIST,
    "stop_token_ids": _LIST,
    "temperature": _NUMBER,
    "top_p": _NUMBER,
    "n": _WHOLE,
    "max_tokens": _WHOLE,
    "max_completion_tokens": _WHOLE,
    "max_output_tokens": _WHOLE,
    "min_tokens": _WHOLE,
    "top_logprobs": _WHOLE,
    "stream": _TRUTH,
    "echo": _TRUTH,
    "ignore_eos": _TRUTH,
    "return_token_ids": _TRUTH,
    "stream_options": _OBJECT,
    "kv_transfer_params": _OBJECT,
    "cache_salt": _TEXT,
}
_NEVER_NULL = frozenset({"messages", "min_tokens", "ignore_eos", "echo"})


def parse_body(headers: Mapping[str, str], raw: bytes) -> dict[str, Any]:
    """The JSON object of a request. Raises the 400 that vLLM answers."""
    if headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        raise unsupported_media_type()
    if not raw:
        raise not_valid("missing", "body", "Field required", None)
    try:
        document = orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise _syntax_error(raw) from None
    if not isinstance(document, dict):
        raise not_valid("dict_type", "body", _OBJECT[2], document)
    return document


def _syntax_error(raw: bytes) -> ApiError:
    """The error for invalid JSON. vLLM uses the standard library, whose message and position it
    returns."""
    place, why = 0, "Expecting value"
    try:
        json.loads(raw)
    except json.JSONDecodeError as error:
        place, why = error.pos, error.msg
    except UnicodeDecodeError:
        pass
    return not_valid("json_invalid", f"body.{place}", "JSON decode error", {}, why)


def check_form(body: Mapping[str, Any], required: str) -> None:
    """Raise a 400 if the required field is missing or a field has the wrong type."""
    if required not in body:
        raise not_valid("missing", f"body.{required}", "Field required", body)
    for name, (types, kind, message) in _FORM.items():
        value = body.get(name)
        if value is None and (name not in body or name not in _NEVER_NULL):
            continue
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise not_valid(kind, f"body.{name}", message, value)


def leg_of(body: object) -> str:
    """The part of a disaggregated request that this body is for: prefill, decode, or plain."""
    kv = body.get("kv_transfer_params") if isinstance(body, dict) else None
    if not isinstance(kv, dict):
        return "plain"
    if kv.get("do_remote_prefill"):
        return "decode"
    return "prefill" if kv.get("do_remote_decode") or "disagg_spec" in kv else "plain"
