"""GET /v1/responses/ID and POST /v1/responses/ID/cancel, answered by the engine that stores the
response."""

from http import HTTPStatus
from typing import Final
from urllib.parse import quote

from fastapi import FastAPI, Request, Response

from router.core.errors import BadRequest, EngineFailed, NotFound
from router.core.fleet.fleet import Fleet
from router.core.routing.stored_responses import keepers
from router.core.urls import split_rank
from router.core.values import Role
from router.core.wire.facts import TRUE_WORDS
from router.net.engine.engine_session import ERRORS, engine_session, read_bounded
from router.net.request.network import Network
from router.net.watched_files import TLSFiles
from router.web.openapi import refusals

__all__ = ["add_stored_responses"]

SECONDS: Final = 30.0
"""Time-out of an engine's answer, which comes from its memory."""

MAX_BYTES: Final = 16 << 20
"""Largest stored response in bytes."""

PATH: Final = "/v1/responses/{name}"

REFUSALS: Final = refusals(NotFound, EngineFailed)


def add_stored_responses(app: FastAPI, fleet: Fleet, network: Network, tls: TLSFiles) -> None:
    """Add the routes."""

    async def asked(request: Request, method: str, name: str, path: str = "") -> Response:
        found = keepers(name, (member.endpoint for member in fleet.pool(Role.DECODE)))
        if not found:
            raise NotFound(f"Response with id '{name}' not found.", "response_id")
        key = request.headers.get("authorization")
        headers = {} if network.withholds_client_keys or key is None else {"authorization": key}
        url = f"{split_rank(found[0].url)[0]}/v1/responses/{quote(name, safe='')}{path}"
        try:
            async with (
                engine_session(
                    network.engine_api_key, tls.context, timeout_seconds=SECONDS
                ) as session,
                session.request(method, url, headers=headers, allow_redirects=False) as answer,
            ):
                body = await read_bounded(answer, MAX_BYTES)
        except ERRORS:
            raise EngineFailed("The engine that stores the response does not answer.") from None
        if answer.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN) and not headers:
            raise EngineFailed("The engine did not accept the router's API key.")
        return Response(body, answer.status, media_type=answer.content_type)

    @app.get(PATH, responses=REFUSALS)
    async def stored(request: Request, name: str) -> Response:
        """A stored response, as a whole."""
        if request.query_params.get("stream", "").lower() in TRUE_WORDS:
            raise BadRequest("stream: a stored response is not streamed; ask without it.", "stream")
        return await asked(request, "GET", name)

    @app.post(f"{PATH}/cancel", responses=REFUSALS)
    async def cancel(request: Request, name: str) -> Response:
        """Cancel a response that is computed in the background."""
        return await asked(request, "POST", name, "/cancel")
