"""The OpenAPI document, and the pages at GET / and GET /docs.

The document has FastAPI's routes with the errors of each, and the inference routes, which are
served without FastAPI. The pages are self-contained: FastAPI's own page loads scripts from a CDN,
which a cluster without internet access cannot reach.
"""

from collections.abc import Iterable, Iterator, Mapping
from html import escape
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI

from router import __version__
from router.core.errors import (
    BadRequest,
    BodyTooLarge,
    BodyTooSlow,
    EngineFailed,
    EngineTimedOut,
    HeadersTooLarge,
    InternalError,
    LengthRequired,
    NoEngine,
    NotFound,
    RouterError,
    TooManyRequests,
    Unauthorized,
    UnsupportedBody,
)
from router.core.values import Route
from router.core.wire.api_errors import is_anthropic
from router.core.wire.facts import MAX_MODEL_CHARACTERS

__all__ = ["Application", "docs_page", "index_page", "refusals"]

ANY: Final = (BadRequest, Unauthorized, BodyTooSlow, BodyTooLarge, HeadersTooLarge, InternalError)
"""Errors that any route may answer with."""

OF_INFERENCE: Final = (
    *ANY,
    *(NotFound, LengthRequired, UnsupportedBody, TooManyRequests),
    *(EngineFailed, NoEngine, EngineTimedOut),
)

FORMS: Final = frozenset({"/v1/audio/transcriptions", "/v1/audio/translations", "/v1/images/edits"})
"""Routes whose requests are forms with files."""

VALIDATION: Final = ("HTTPValidationError", "ValidationError")
"""FastAPI's schemas of 422 responses, which the router replaces by 400."""

ERROR: Final = {
    "title": "Error",
    "description": "An error in OpenAI's shape.",
    "type": "object",
    "required": ["error"],
    "additionalProperties": False,
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "additionalProperties": False,
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "integer", "description": "The status."},
            },
        }
    },
}
ANTHROPIC_ERROR: Final = {
    "title": "AnthropicError",
    "description": "An error in Anthropic's shape.",
    "type": "object",
    "required": ["type", "error"],
    "additionalProperties": False,
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "additionalProperties": False,
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
        },
        "request_id": {"type": "string"},
    },
}
SCHEMAS: Final = {each["title"]: each for each in (ERROR, ANTHROPIC_ERROR)}


class Application(FastAPI):
    """FastAPI with a document that includes the `inference` routes. Without `has_docs` there is no
    document."""

    def __init__(self, inference: Mapping[str, Route], *, has_docs: bool) -> None:
        super().__init__(
            title="pd-router",
            version=__version__,
            description="Routes LLM requests to pools of prefill and decode engines.",
            redirect_slashes=False,
            openapi_url="/openapi.json" if has_docs else None,
            docs_url=None,
            redoc_url=None,
        )
        self._inference = inference

    def openapi(self) -> dict[str, Any]:
        """The document, created on first use."""
        if self.openapi_schema is None:
            document = super().openapi()
            _add_refusals(document["paths"])
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            for name in VALIDATION:
                schemas.pop(name, None)
            schemas |= SCHEMAS
            inference = {r.path: {"post": _operation(r)} for r in self._inference.values()}
            document["paths"] = inference | document["paths"]
        assert self.openapi_schema is not None
        return self.openapi_schema


def refusals(*errors: type[RouterError], schema: str = "Error") -> dict[int | str, dict[str, Any]]:
    """The responses of an operation that may raise these errors."""
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": content}
        for status in sorted({error.status for error in errors})
    }


def _add_refusals(paths: Mapping[str, Mapping[str, Any]]) -> None:
    given = {str(status): response for status, response in refusals(*ANY).items()}
    for operation in _operations(paths):
        responses = operation["responses"]
        responses.pop("422", None)
        operation["responses"] = dict(sorted((given | responses).items()))


def _operations(paths: Mapping[str, Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
    return (operation for methods in paths.values() for operation in methods.values())


def _operation(route: Route) -> dict[str, Any]:
    schema = "AnthropicError" if is_anthropic(route.path.encode()) else "Error"
    refused = refusals(*OF_INFERENCE, schema=schema)
    return {
        "summary": route.path,
        "description": _told(route),
        "operationId": route.path.strip("/").replace("/", "_"),
        "requestBody": {"required": True, "content": _bodies(route)},
        "responses": {
            "200": {"description": "The engine's answer.", "content": _answers(route)},
            **{str(status): response for status, response in refused.items()},
            "default": {"description": "An error of the engine, as the engine tells it."},
        },
    }


def _bodies(route: Route) -> dict[str, Any]:
    members: dict[str, Any] = {"model": {"type": "string", "maxLength": MAX_MODEL_CHARACTERS}}
    if route.generates:
        members["stream"] = {"type": "boolean", "default": False}
    body = {
        "type": "object",
        "description": "As the engine takes it; the router refuses no further members.",
        "properties": members,
        "additionalProperties": True,
    }
    kinds = ["application/json"]
    if route.path in FORMS:
        kinds.append("multipart/form-data")
    return {kind: {"schema": body} for kind in kinds}


def _answers(route: Route) -> dict[str, Any]:
    """The responses of a route. Where the router passes data through they can be anything, such as
    audio or images."""
    if not route.generates:
        return {"*/*": {}}
    return {
        "application/json": {"schema": {"type": "object"}},
        "text/event-stream": {"schema": {"type": "string"}},
    }


def _told(route: Route) -> str:
    if route.generates:
        return "Routed to an engine, with a remote prefill where that pays."
    return "Passed to a decode engine."


STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .4rem .8rem .4rem 0;
         border-bottom: 1px solid color-mix(in srgb, currentColor 20%, transparent) }
code { white-space: nowrap }
"""


LINKS = {
    "dashboard": "the live page: engines, load, decisions and changes",
    "docs": "all operations",
    "endpoints": "every engine, as JSON",
    "metrics": "for Prometheus",
}


def index_page(title: str) -> str:
    """The page at GET /."""
    links = (f'<li><a href="{path}">/{path}</a>: {text}</li>' for path, text in LINKS.items())
    return _page(title, f"<ul>{''.join(links)}</ul>")


def docs_page(openapi: Mapping[str, Any]) -> str:
    """The page at GET /docs."""
    info = openapi["info"]
    rows = _rows(openapi["paths"])
    return _page(
        f"{info['title']} {info['version']}",
        f"<p>{escape(info['description'])}</p>"
        "<table><thead><tr><th>operation</th><th>what it does</th></tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>"
        '<p><a href="openapi.json">openapi.json</a></p>',
    )


def _page(title: str, body: str) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body><h1>{escape(title)}</h1>{body}</body></html>"
    )


def _rows(paths: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for path, methods in paths.items():
        for method, operation in methods.items():
            yield _row(method.upper(), path, operation.get("description", ""))


def _row(method: str, path: str, text: str) -> str:
    return f"<tr><td><code>{method} {escape(path)}</code></td><td>{escape(text)}</td></tr>"
