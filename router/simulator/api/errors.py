"""Errors in the wording and format of vLLM 0.32."""

import json
from typing import Any


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
