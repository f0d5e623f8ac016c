"""Errors in the wording and format of vLLM 0.32, and the checks of bodies that raise them."""

import json
from collections.abc import Mapping
from typing import Any

import orjson


class ApiError(Exception):
    """An error for the client. `document` is the response body in OpenAI's format."""

    def __init__(self, status: int, document: dict[str, Any]) -> None:
        super().__init__(f"{status} {document}")
        self.status = status
        self.document = document

    def body(self, path: str) -> dict[str, Any]:
        """The response body on a route. On /v1/messages vLLM answers in Anthropic's format, with
        its own types, but for what pydantic rejects."""
        error = self.document["error"]
        if not path.startswith("/v1/messages") or error["type"] == _REJECTED:
            return self.document
        return {"type": "error", "error": {"type": error["type"], "message": error["message"]}}


_REJECTED = "Bad Request"
"""The type of errors of form, which vLLM's handlers do not see."""


def _error(status: int, message: str, kind: str, param: str | None = None) -> ApiError:
    error = {"message": message, "type": kind, "param": param, "code": status}
    return ApiError(status, {"error": error})


_KINDS = {
    400: "BadRequestError",
    404: "NotFoundError",
    429: "RateLimitError",
    500: "InternalServerError",
    501: "NotImplementedError",
    503: "ServiceUnavailableError",
}


def injected(status: int) -> ApiError:
    """The error of a request with an injected fault."""
    return _error(status, "injected by /sim/faults", _KINDS.get(status, "InjectedError"))


def internal() -> ApiError:
    return _error(500, "Internal server error", "InternalServerError")


def engine_dead() -> ApiError:
    message = "EngineCore encountered an issue. See stack trace (above) for the root cause."
    return _error(500, message, "InternalServerError")


def busy() -> ApiError:
    message = (
        "The engine is currently busy and cannot accept new requests."
        " Please try again later or on a different instance."
    )
    return _error(503, message, "Service Unavailable")


def no_model(model: object, known: tuple[str, ...]) -> ApiError:
    message = f"The model `{model}` does not exist. Valid aliases: {', '.join(known)}."
    return _error(404, message, "NotFoundError", "model")


def invalid(param: str, message: str, value: object = None) -> ApiError:
    """A semantically invalid request, rejected by vLLM's own checks."""
    shown = f", value={value}" if value is not None else ""
    return _error(400, f"{message} (parameter={param}{shown})", "BadRequestError", param)


def bad_request(message: str) -> ApiError:
    """A request that vLLM rejects without naming a parameter."""
    return _error(400, message, "BadRequestError")


def not_valid(
    kind: str, place: str, message: str, given: object, context: str | None = None
) -> ApiError:
    """A request of the wrong form, rejected by pydantic; vLLM answers 400."""
    problem = {"type": kind, "loc": place, "msg": message, "input": _shown(given)}
    text = str(problem)
    if context is not None:
        text = f"{text[:-1]}, 'ctx': {{'error': '{context}'}}}}"
    return _error(400, f"1 validation error:\n  {text}", _REJECTED, place)


def unsupported_media_type() -> ApiError:
    message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
    return _error(400, message, _REJECTED)


def _shown(value: object) -> str:
    if isinstance(value, dict | list):
        return f"<{type(value).__name__} of {len(value)} items>"
    return str(value)


def stream_frame(error: ApiError) -> bytes:
    """An error in a stream that has begun, with json.dumps' spaces, as in vLLM."""
    return b"data: " + json.dumps(error.document).encode() + b"\n\n"


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
