"""The errors that clients get, with their HTTP status and body in OpenAI's format.

Like in vLLM: `{"error": {"message", "type", "param", "code"}}` with the status as code. Other APIs'
formats: `wire/api_errors.py`.
"""

from typing import ClassVar, Final

import orjson

__all__ = [
    "BadRequest",
    "BodyTooLarge",
    "BodyTooSlow",
    "Conflict",
    "EngineFailed",
    "EngineTimedOut",
    "HeadersTooLarge",
    "InternalError",
    "LengthRequired",
    "LimitReached",
    "MethodNotAllowed",
    "NoEngine",
    "NoPartner",
    "NotFound",
    "Overloaded",
    "QueueFull",
    "RouterError",
    "ShuttingDown",
    "TooManyRequests",
    "TooManyViewers",
    "Unauthorized",
    "Unhealthy",
    "UnsupportedBody",
]


NO_REQUESTS_LEFT: Final = (
    b"x-ratelimit-remaining-requests: 0\r\nx-ratelimit-reset-requests: %ds\r\n"
)


class RouterError(Exception):
    """A failure that ends a request with `status` and a body in OpenAI's format."""

    status: ClassVar[int]
    type: ClassVar[str]
    retry_seconds: ClassVar[int | None] = None

    def __init__(
        self, message: str, param: str | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after or self.retry_seconds
        """Seconds for the Retry-After header; None: no such header."""

    def fields(self) -> dict[str, object]:
        """The error's members in OpenAI's format."""
        return {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.status,
        }

    def body(self) -> bytes:
        """The JSON body of the error response in OpenAI's format."""
        return orjson.dumps({"error": self.fields()})

    def header_lines(self) -> bytes:
        """Header lines of the response, in addition to those of any JSON body."""
        return b"" if self.retry_after is None else b"retry-after: %d\r\n" % self.retry_after


class BadRequest(RouterError):
    """The request is invalid on any engine."""

    status = 400
    type = "BadRequestError"


class Unauthorized(RouterError):
    """No API key, or an unknown one."""

    status = 401
    type = "AuthenticationError"

    def header_lines(self) -> bytes:
        """The authentication scheme."""
        return b"www-authenticate: Bearer\r\n"


class NotFound(RouterError):
    """Unknown model or route."""

    status = 404
    type = "NotFoundError"


class MethodNotAllowed(RouterError):
    """The route exists, for another method."""

    status = 405
    type = "MethodNotAllowedError"

    def header_lines(self) -> bytes:
        """The methods of inference routes; other routes have their own line."""
        return b"allow: POST\r\n"


class BodyTooSlow(RouterError):
    """The request's body did not arrive in time."""

    status = 408
    type = "RequestTimeoutError"


class Conflict(RouterError):
    """The order cannot be applied in the fleet's current state."""

    status = 409
    type = "ConflictError"


class LengthRequired(RouterError):
    """A POST without any indication of a body."""

    status = 411
    type = "LengthRequiredError"


class BodyTooLarge(RouterError):
    """The request's body exceeds the size limit."""

    status = 413
    type = "RequestTooLargeError"


class UnsupportedBody(RouterError):
    """The body is compressed in a way that is not supported. `accepted`: the supported codings, for
    the Accept-Encoding header (RFC 9110 section 15.5.16)."""

    status = 415
    type = "UnsupportedMediaTypeError"

    def __init__(self, message: str, accepted: bytes = b"identity") -> None:
        super().__init__(message)
        self.accepted = accepted

    def header_lines(self) -> bytes:
        """The supported codings."""
        return b"accept-encoding: %b\r\n" % self.accepted


class HeadersTooLarge(RouterError):
    """The request line and headers exceed the size limit."""

    status = 431
    type = "RequestHeaderFieldsTooLargeError"


class InternalError(RouterError):
    """A bug of the router itself."""

    status = 500
    type = "InternalServerError"


class EngineFailed(RouterError):
    """An engine refused the connection, closed it, or sent invalid HTTP."""

    status = 502
    type = "EngineError"


class NoEngine(RouterError):
    """No engine can take the request now."""

    status = 503
    type = "ServiceUnavailableError"
    # Engines that are down are probed every second, so nothing can change earlier.
    retry_seconds: ClassVar[int | None] = 1


class NoPartner(NoEngine):
    """There are engines, but none that can exchange KV caches with the request's other engine.
    Plans continue without a transfer, so clients never get this error."""

    retry_seconds: ClassVar[int | None] = None


class ShuttingDown(NoEngine):
    """The router is shutting down."""


class Overloaded(RouterError):
    """The router has no room for the request, or it waited too long in the queue."""

    status = 503
    type = "ServiceUnavailableError"
    # Bodies are held until an engine answers, which takes about a second under load.
    retry_seconds: ClassVar[int | None] = 1


class TooManyRequests(RouterError):
    """More requests than the limit allows."""

    status = 429
    type = "RateLimitError"
    retry_seconds: ClassVar[int | None] = 1


class QueueFull(TooManyRequests):
    """The queue is full."""

    def header_lines(self) -> bytes:
        """When to retry, also in OpenAI's rate limit headers."""
        return super().header_lines() + NO_REQUESTS_LEFT % self.retry_after


class LimitReached(TooManyRequests):
    """A limit of an API key was reached. `limit`: requests or tokens (per minute) or streams
    (concurrent)."""

    def __init__(
        self, message: str, limit: str = "requests", retry_after: int | None = None
    ) -> None:
        super().__init__(message, retry_after=retry_after)
        self.limit = limit


class Unhealthy(RouterError):
    """A background task of the router keeps failing."""

    status = 503
    type = "ServiceUnavailableError"


class TooManyViewers(RouterError):
    """The live page has reached its limit of viewers."""

    status = 503
    type = "ServiceUnavailableError"


class EngineTimedOut(RouterError):
    """An engine sent nothing for longer than the setting allows."""

    status = 504
    type = "EngineTimeoutError"
