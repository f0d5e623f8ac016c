"""Everything except inference, in FastAPI: models, health, readiness, version, metrics. HEAD and
OPTIONS work for every path, and a path that is not served is answered with the likely one."""

import difflib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse
from starlette.exceptions import HTTPException
from starlette.routing import Route as StarletteRoute

from router import __version__
from router.core.errors import (
    BadRequest,
    InternalError,
    MethodNotAllowed,
    NoEngine,
    NotFound,
    RouterError,
    Unhealthy,
)
from router.core.fleet.fleet import Fleet
from router.core.fleet.status import SERVER, pool_status
from router.core.routes import ROUTES
from router.core.values import Role, Route
from router.core.wire.api_errors import error_body
from router.net.request.network import Network
from router.net.watched_files import TLSFiles
from router.telemetry.exposition import OPEN_METRICS, PLAIN, TextFormat, accepted
from router.web.asgi_call import App, Message, Receive, Send
from router.web.dashboard.page import Sampler, add_dashboard
from router.web.engines_api import endpoints
from router.web.lifecycle import Lifecycle
from router.web.openapi import Application, docs_page, index_page, refusals
from router.web.routing import Routing
from router.web.stored_responses import add_stored_responses

__all__ = [
    "Admin",
    "HeadAsGet",
    "Lifecycle",
    "allowed",
    "create_admin_operations",
    "create_operations",
    "meant",
]


MAX_PATH = 100
"""Longest path in characters that is compared with others, since that takes quadratic time."""

CLOSE = 0.85
"""Similarity from which a path is taken for a misspelling: /v1/chat/completion is similar enough,
/v1/completion for /v1/chat/completions is not."""


@dataclass(frozen=True, slots=True)
class Admin:
    """What operators can read."""

    exposition: Callable[[TextFormat], Awaitable[bytes]]
    sampler: Sampler
    """The samples for the live page."""
    has_exemplars: bool
    """Whether latency histograms have exemplars with trace ids."""


def create_operations(
    routing: Routing, lifecycle: Lifecycle, admin: Admin | None, network: Network, tls: TLSFiles
) -> FastAPI:
    """The application for clients: everything except inference; with `admin` also the routes for
    operators. `network` and `tls` are those of requests to engines."""
    app = _app(ROUTES, has_docs=admin is not None)
    _add_models(app, routing)
    add_stored_responses(app, routing.fleet, network, tls)
    _add_states(app, routing.fleet, lifecycle)
    if admin is not None:
        _add_admin(app, routing.fleet, admin)
    _add_errors(app, ROUTES)
    return app


def create_admin_operations(fleet: Fleet, lifecycle: Lifecycle, admin: Admin) -> FastAPI:
    """The application of the admin listener: without inference and models."""
    app = _app({}, has_docs=True)
    _add_states(app, fleet, lifecycle)
    _add_admin(app, fleet, admin)
    _add_errors(app, {})
    return app


def _app(inference: Mapping[str, Route], *, has_docs: bool) -> FastAPI:
    app = Application(inference, has_docs=has_docs)
    app.add_middleware(HeadAsGet)
    return app


# Routes are coroutines although few of them await: FastAPI runs plain functions in threads, where
# the fleet could change meanwhile.


def _add_models(app: FastAPI, routing: Routing) -> None:
    @app.get("/v1/models")
    async def models() -> dict[str, object]:
        """The models of all usable engines, and their aliases."""
        return {"object": "list", "data": list(routing.names.cards().values())}

    @app.get("/v1/models/{name:path}", responses=refusals(NotFound))
    async def model(name: str) -> dict[str, object]:
        """One model."""
        if not name:
            raise NotFound("GET /v1/models/: no such route. Did you mean GET /v1/models?")
        card = routing.names.cards().get(name)
        if card is None:
            raise NotFound(f"The model `{name}` does not exist.", "model")
        return card


def _add_states(app: FastAPI, fleet: Fleet, lifecycle: Lifecycle) -> None:
    @app.get("/health", response_class=Response, responses=refusals(Unhealthy))
    async def health() -> Response:
        """Liveness: 200 while the background tasks work."""
        lifecycle.check()
        return Response()

    @app.get("/ready", responses=refusals(Unhealthy, NoEngine))
    async def ready() -> dict[str, str]:
        """Readiness: 200 while healthy, with a usable decode engine, and not shutting down."""
        lifecycle.check()
        if lifecycle.is_draining:
            raise NoEngine("The router is shutting down.")
        if not fleet.is_ready:
            raise NoEngine(f"No decode engine is up: {pool_status(fleet.pool(Role.DECODE))}.")
        return {"status": "ready"}

    @app.get("/version")
    async def version() -> dict[str, str]:
        """The router's version. By `server` another router notices that it is no engine."""
        return {"version": __version__, "server": SERVER}


def _add_admin(app: FastAPI, fleet: Fleet, admin: Admin) -> None:
    @app.get("/", include_in_schema=False)
    async def index() -> HTMLResponse:
        """Links for who opens the router in a browser."""
        return HTMLResponse(index_page(f"{app.title} {app.version}"))

    @app.get("/endpoints")
    async def known() -> Response:
        """The status of each engine with its cause, load and speed."""
        text = orjson.dumps(
            endpoints(fleet), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
        )
        return Response(text, media_type="application/json")

    @app.get(
        "/metrics",
        response_class=PlainTextResponse,
        responses={200: {"content": {OPEN_METRICS.content_type: {}}}},
    )
    async def metrics(request: Request) -> Response:
        """Prometheus metrics, as OpenMetrics if that is accepted and requests are traced."""
        # OpenMetrics takes twice the time; with a thousand engines that is only worthwhile for
        # exemplars.
        accepts = ",".join(request.headers.getlist("accept"))
        text_format = accepted(accepts) if admin.has_exemplars else PLAIN
        return Response(await admin.exposition(text_format), media_type=text_format.content_type)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        """This page."""
        return HTMLResponse(docs_page(app.openapi()))

    add_dashboard(app, admin.sampler)


def _add_errors(app: FastAPI, inference: Mapping[str, Route]) -> None:
    @app.exception_handler(RouterError)
    async def routed(request: Request, error: Exception) -> Response:
        assert isinstance(error, RouterError)
        return _response(error, request)

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:  # Starlette logs it
        return _response(InternalError(f"The router failed: {type(error).__name__}."), request)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == HTTPStatus.BAD_REQUEST:  # FastAPI's: the body cannot be read
            return _response(BadRequest("The body is no JSON text."), request)
        text, path = f"{request.method} {request.url.path}", _route_path(request)
        # Inference routes are not FastAPI's; only OPTIONS gets here for them.
        methods = "POST" if path in inference else (error.headers or {}).get("Allow")
        if methods is not None:
            headers = {"allow": allowed(methods)}
            if request.method == "OPTIONS":
                return Response(status_code=204, headers=headers)
            response = _response(MethodNotAllowed(f"{text}: method not allowed."), request)
            response.headers.update(headers)
            return response
        served = [route.path for route in app.routes if isinstance(route, StarletteRoute)]
        hint = meant(path, served, inference)
        question = "" if hint is None else f" Did you mean {hint}?"
        return _response(NotFound(f"{text}: no such route.{question}"), request)


def _response(error: RouterError, request: Request) -> Response:
    body = error_body(error, _route_path(request).encode())
    headers = {} if error.retry_after is None else {"retry-after": str(error.retry_after)}
    return Response(body, error.status, media_type="application/json", headers=headers)


def _route_path(request: Request) -> str:
    """The path below --path-prefix."""
    path: str = request.scope["path"]
    return path.removeprefix(request.scope["root_path"])


class HeadAsGet:
    """ASGI middleware that answers HEAD like GET. The server sends no body; endless responses check
    `is_head` in the scope."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Process a request."""
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET", "is_head": True}
        await self._app(scope, receive, send)


def allowed(methods: str) -> str:
    """The Allow header for a path with these methods, a comma-separated list."""
    given = {method.strip() for method in methods.split(",")}
    return ", ".join(sorted(given | {"OPTIONS"} | ({"HEAD"} if "GET" in given else set())))


def meant(path: str, served: Iterable[str], posted: Iterable[str]) -> str | None:
    """The request that a client may have meant by a path that is not served, such as "POST
    /v1/completions". `served` are the paths of GET, `posted` those of POST."""
    methods = dict.fromkeys(served, "GET") | dict.fromkeys(posted, "POST")
    path = path.rstrip("/")
    if not path or len(path) > MAX_PATH:
        return None
    # A base URL without its /v1, with two of them, or with a prefix.
    longer = sorted((known for known in methods if known.endswith(path)), key=len)
    shorter = sorted((known for known in methods if path.endswith(known)), key=len, reverse=True)
    near = difflib.get_close_matches(path, methods, 1, CLOSE)
    found = next(iter([*longer, *shorter, *near]), None)
    return None if found is None else f"{methods[found]} {found}"
