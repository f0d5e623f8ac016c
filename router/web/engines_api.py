"""The API by which operators change the fleet: list, add, drain, undrain and remove engines.

Only the admin listener has these routes. Orders are JSON, so that web pages of another origin
cannot send them without a preflight, which is refused.
"""

from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict

from router.core.errors import BadRequest, Conflict, NotFound, Unhealthy
from router.core.fleet.fleet import Fleet
from router.core.fleet.member import Member
from router.core.fleet.status import cause, status
from router.core.health import State
from router.core.membership.engine_networks import EngineNetworks
from router.core.membership.entry import Order
from router.core.membership.roster import engine_of
from router.core.urls import normalise, split_rank, with_rank
from router.core.values import Endpoint, Role
from router.web.fleet_sync import FleetSync
from router.web.openapi import refusals

__all__ = ["add_engines_api"]

PATH = "/admin/engines"

REFUSALS = refusals(NotFound, Conflict, Unhealthy)
"""Errors of orders."""


class Engine(BaseModel):
    """Identifies an engine. The role can be omitted if the URL has only one."""

    model_config = ConfigDict(extra="forbid")

    url: str
    role: Role | None = None


def add_engines_api(app: FastAPI, fleet: Fleet, sync: FleetSync, networks: EngineNetworks) -> None:
    """Add the routes to an application that only operators reach. Added engines must be in
    `networks`."""

    async def obeyed(order: Order, engine: Engine) -> dict[str, Any]:
        endpoint = _meant(engine, order, sync)
        if order is Order.ADD and (why := networks.refusal(endpoint.url)) is not None:
            raise BadRequest(f"Cannot add {endpoint.url}: {why}.", "url")
        await sync.order(order, endpoint)
        return _entry(fleet, endpoint)

    @app.get(PATH)
    async def engines() -> dict[str, Any]:
        """All engines with their sources, and the orders in force."""
        sync.follow()
        orders = [
            {"url": endpoint.url, "role": endpoint.role, "order": order}
            for endpoint, order in sync.roster.orders()
        ]
        return {"engines": [_shown(member) for member in fleet], "orders": orders}

    @app.post(PATH, responses=REFUSALS)
    async def add(engine: Engine) -> dict[str, Any]:
        """Add an engine, independently of the sources. It stays until it is removed."""
        return await obeyed(Order.ADD, engine)

    @app.post(f"{PATH}/drain", responses=REFUSALS)
    async def drain(engine: Engine) -> dict[str, Any]:
        """Send an engine no new requests. Requests in progress continue."""
        return await obeyed(Order.DRAIN, engine)

    @app.post(f"{PATH}/undrain", responses=REFUSALS)
    async def undrain(engine: Engine) -> dict[str, Any]:
        """Undo an order to drain."""
        return await obeyed(Order.UNDRAIN, engine)

    @app.delete(PATH, responses=REFUSALS)
    async def remove(url: str, role: Role | None = None) -> dict[str, Any]:
        """Drain an engine, and remove it when its last request has ended."""
        return await obeyed(Order.REMOVE, Engine(url=url, role=role))

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        problem = error.errors()[0]
        place = ".".join(str(each) for each in problem["loc"])
        refusal = BadRequest(
            f'{place}: {problem["msg"]}. Send JSON like {{"url": "http://10.0.0.1:8000", '
            '"role": "decode"}, with its content type.'
        )
        return Response(refusal.body(), refusal.status, media_type="application/json")


def _meant(engine: Engine, order: Order, sync: FleetSync) -> Endpoint:
    """The endpoint that is meant. Raises BadRequest or NotFound."""
    try:
        base, rank = split_rank(engine.url)
        url = normalise(base) if rank is None else with_rank(normalise(base), rank)
    except ValueError as error:
        raise BadRequest(f"url: {error}.", "url") from None
    if engine.role is not None:
        return Endpoint(url, engine.role)
    if order is Order.ADD:
        raise BadRequest("role: is needed; prefill or decode.", "role")
    sync.follow()
    known = {entry.endpoint for entry in sync.roster.entries}
    known |= {endpoint for endpoint, _ in sync.roster.orders()}
    found = [endpoint for endpoint in known if endpoint.url == url]
    if not found:  # an engine whose data-parallel ranks are the endpoints
        roles = {each.role for each in known if split_rank(each.url)[0] == url}
        found = [Endpoint(url, role) for role in roles]
    if not found:
        raise NotFound(f"There is no engine {url}; GET {PATH} lists them.")
    if len(found) > 1:
        raise BadRequest(f"role: is needed; {url} is a prefill and a decode engine.", "role")
    return found[0]


def _entry(fleet: Fleet, endpoint: Endpoint) -> dict[str, Any]:
    """An engine's entry, combined from its data-parallel ranks if it has several. Its state is that
    of a rank that drains, or else is not up. An engine whose ranks were found a moment ago may
    still be leaving as a whole, beside them: then only its requests count."""
    members = [m for m in fleet if endpoint in (m.endpoint, engine_of(m.endpoint))]
    if not members:
        return {"url": endpoint.url, "role": endpoint.role, "state": "gone", "in_flight": 0}
    staying = [m for m in members if m.leaving_since is None] or members
    telling = max(staying, key=lambda m: (m.is_drained, status(m) is not State.UP))
    in_flight = sum(m.view.in_flight for m in members)
    return {**_shown(telling), "url": endpoint.url, "in_flight": in_flight}


def _shown(member: Member) -> dict[str, Any]:
    return {
        "url": member.endpoint.url,
        "role": member.endpoint.role,
        "identity": member.identity,
        "source": member.source,
        "state": status(member),
        "cause": cause(member),
        "is_leaving": member.leaving_since is not None,
        "in_flight": member.view.in_flight,
    }
