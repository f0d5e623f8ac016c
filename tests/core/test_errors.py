"""A client's error: a status, and a body in OpenAI's format."""

import inspect

import orjson
import pytest

from router.core import errors
from router.core.errors import (
    BadRequest,
    LimitReached,
    MethodNotAllowed,
    NoEngine,
    Overloaded,
    QueueFull,
    RouterError,
    ShuttingDown,
    TooManyRequests,
    Unauthorized,
    UnsupportedBody,
)

KINDS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, RouterError) and kind is not RouterError
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_failure_has_an_error_status_and_is_public(kind: type[RouterError]) -> None:
    assert 400 <= kind.status <= 599
    assert kind.__name__ in errors.__all__


def test_the_body_is_openais() -> None:
    error = BadRequest("`model` must be a string.", "model")
    assert orjson.loads(error.body()) == {
        "error": {
            "message": "`model` must be a string.",
            "type": "BadRequestError",
            "param": "model",
            "code": 400,
        }
    }


def test_an_error_without_a_parameter_has_null() -> None:
    assert orjson.loads(NoEngine("x").body())["error"]["param"] is None


def test_the_message_is_also_the_exceptions_text() -> None:
    assert str(NoEngine("No engine.")) == "No engine."


def test_any_text_can_be_published() -> None:
    assert orjson.loads(BadRequest('"\n\x00é').body())["error"]["message"] == '"\n\x00é'


@pytest.mark.parametrize("kind", KINDS)
def test_only_temporary_failures_may_be_retried_later(kind: type[RouterError]) -> None:
    passes = (NoEngine, ShuttingDown, Overloaded, TooManyRequests, QueueFull, LimitReached)
    assert (kind("x").retry_after is not None) == (kind in passes)


def test_retry_after_can_be_set() -> None:
    assert TooManyRequests("x", retry_after=7).retry_after == 7


LINES: list[tuple[RouterError, bytes]] = [
    (BadRequest("x"), b""),
    (NoEngine("x"), b"retry-after: 1\r\n"),
    (NoEngine("x", retry_after=7), b"retry-after: 7\r\n"),
    (Unauthorized("x"), b"www-authenticate: Bearer\r\n"),
    (MethodNotAllowed("x"), b"allow: POST\r\n"),
    (UnsupportedBody("x"), b"accept-encoding: identity\r\n"),
    (UnsupportedBody("x", b"gzip"), b"accept-encoding: gzip\r\n"),
    (
        QueueFull("x", retry_after=3),
        b"retry-after: 3\r\n"
        b"x-ratelimit-remaining-requests: 0\r\nx-ratelimit-reset-requests: 3s\r\n",
    ),
    (LimitReached("x", "tokens"), b"retry-after: 1\r\n"),  # the rest is in all answers
]


@pytest.mark.parametrize(("error", "lines"), LINES, ids=lambda each: type(each).__name__)
def test_the_header_lines_have_the_clients_options(error: RouterError, lines: bytes) -> None:
    assert error.header_lines() == lines
