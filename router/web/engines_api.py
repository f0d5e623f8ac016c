"""Engines as operators see and change them: GET /endpoints, and /admin/engines to list, add, drain,
undrain and remove engines.

Only the admin listener has /admin/engines. Orders are JSON, so that web pages of another origin
cannot send them without a preflight, which is refused.
"""

import time
from datetime import UTC, datetime
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict

from router.core.errors import BadRequest, Conflict, NotFound, Unhealthy
from router.core.fleet.fleet import Fleet
from router.core.fleet.status import cause, exclusion_since, since, status
from router.core.health import State
from router.core.judge.member import Member
from router.core.kv_events import EngineCache, KVSource
from router.core.membership.engine_names import EngineNetworks
from router.core.membership.entry import EVERY, Order
from router.core.membership.roster import engine_of
from router.core.urls import normalise, split_rank, with_rank
from router.core.values import Endpoint, Role
from router.web.fleet_sync import FleetSync
from router.web.openapi import refusals
from router.web.routing import Routing

__all__ = ["add_engines_api", "clock", "endpoints", "entry", "time_of_day"]

PATH = "/admin/engines"

REFUSALS = refusals(NotFound, Conflict, Unhealthy)
"""Errors of orders."""


class Engine(BaseModel):
    """Identifies an engine. The role can be omitted if the URL has only one."""

    model_config = ConfigDict(extra="forbid")

    url: str
    role: Role | None = None


class Drain(Engine):
    """An engine to drain; `*`: all of the role, or of both. `move`: its streams go on with other
    engines."""

    move: bool = False


def add_engines_api(
    app: FastAPI, routing: Routing, sync: FleetSync, networks: EngineNetworks
) -> None:
    """Add the routes to an application that only operators reach. Added engines must be in
    `networks`."""
    fleet = routing.fleet

    async def obeyed(order: Order, engine: Engine) -> dict[str, Any]:
        if engine.url == EVERY:
            return await _of_all(fleet, sync, order, engine.role)
        endpoint = _meant(engine, order, sync)
        _check(networks, order, endpoint)
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
    async def drain(engine: Drain) -> dict[str, Any]:
        """Send an engine, or all of them (`"url": "*"`), no new requests. Requests in progress
        continue: there, or with `move` on other engines if they can (docs/continuation.md)."""
        if engine.move and not routing.scheduler.continues:
            raise Conflict(
                "Cannot move streams: --stream-continuation off, or auto while an engine is not "
                "known to be vLLM 0.32 or later."
            )
        return await obeyed(Order.MOVE if engine.move else Order.DRAIN, engine)

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


def _check(networks: EngineNetworks, order: Order, endpoint: Endpoint) -> None:
    """Raise BadRequest if an engine may not be added."""
    if order is Order.ADD and (why := networks.refusal(endpoint.url)) is not None:
        raise BadRequest(f"Cannot add {endpoint.url}: {why}.", "url")


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
        raise BadRequest(f"role: is needed; {' or '.join(Role)}.", "role")
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
        raise BadRequest(f"role: is needed; {url} has several.", "role")
    return found[0]


def _entry(fleet: Fleet, endpoint: Endpoint) -> dict[str, Any]:
    """An engine's entry, combined from its data-parallel ranks if it has several. Its state is that
    of a rank that drains, or else is not up. An engine whose ranks were found a moment ago may
    still be leaving as a whole, beside them: then only its requests count."""
    members = [m for m in fleet if endpoint in (m.endpoint, engine_of(m.endpoint))]
    if not members:
        return {"url": endpoint.url, "role": endpoint.role, "state": "gone", "in_flight": 0}
    staying = [m for m in members if m.entry.leaving_since is None] or members
    telling = max(staying, key=lambda m: (m.is_drained, status(m) is not State.UP))
    in_flight = sum(m.view.in_flight for m in members)
    return {**_shown(telling), "url": endpoint.url, "in_flight": in_flight}


async def _of_all(fleet: Fleet, sync: FleetSync, order: Order, role: Role | None) -> dict[str, Any]:
    """Execute an order for all engines of a role, or of all. Returns an entry for all of them."""
    if order not in (Order.DRAIN, Order.UNDRAIN):
        raise BadRequest(f"url: {EVERY} can only be drained and undrained, without `move`.", "url")
    for each in Role:
        if role in (None, each):
            await sync.order(order, Endpoint(EVERY, each))
    members = [member for member in fleet if role in (None, member.endpoint.role)]
    return {
        "url": EVERY,
        "role": role or "all",
        "state": "paused" if order is Order.DRAIN else "resumed",
        "in_flight": sum(member.view.in_flight for member in members),
    }


def _shown(member: Member) -> dict[str, Any]:
    return {
        "url": member.endpoint.url,
        "role": member.endpoint.role,
        "identity": member.entry.identity,
        "source": member.entry.source,
        "zone": member.entry.zone,
        "state": status(member),
        "cause": cause(member),
        "is_leaving": member.entry.leaving_since is not None,
        "in_flight": member.view.in_flight,
    }


def endpoints(fleet: Fleet) -> list[dict[str, Any]]:
    """One entry per endpoint. Durations are in seconds, until or since now; times are UTC, as in
    the log; None: unknown."""
    now = time.monotonic()
    return [entry(fleet, member, now) for member in fleet]


def entry(fleet: Fleet, member: Member, now: float) -> dict[str, Any]:
    """The entry of one endpoint; see `endpoints`."""
    view, speed, scrapes = member.view, member.speed, member.scrapes
    is_prefill = member.endpoint.role is Role.PREFILL
    seconds = speed.per_prompt_token if is_prefill else speed.per_token
    return {
        "url": member.endpoint.url,
        "role": member.endpoint.role,
        "state": State.DRAINING if member.is_drained else member.health.state,
        "source": member.entry.source,
        "is_leaving": member.entry.leaving_since is not None,
        "exclusion": member.exclusion,
        "cause": cause(member),
        "hands_over": speed.counts.hands_over or speed.counts.is_stalled,
        "since": time_of_day(since(member), now),
        "last_error": member.last_error,
        "last_error_at": time_of_day(
            None if member.last_error is None else member.last_error_at, now
        ),
        "is_panic": fleet.is_panic(member.endpoint.role),
        "exclusion_seconds": _exclusion_seconds(member, now),
        "returns_in_seconds": None if member.outlier.until is None else member.outlier.until - now,
        "speed_probes_fail": member.speed_probes_fail,
        "is_full": member.is_full(now),
        "in_flight": view.in_flight,
        "in_flight_tokens": view.tokens,
        "other_requests": member.other_requests,
        "gauges_age_seconds": None if scrapes.scraped_at is None else now - scrapes.scraped_at,
        "gauges_error": scrapes.error,
        "slots": None if member.capacity.slots == float("inf") else member.capacity.slots,
        "seconds_per_token": seconds,
        "slowdown": view.slowdown if seconds is not None else None,
        "slow_start_weight": view.slow_start_weight,
        "expected_delay_seconds": fleet.expected_delay(member),
        "prefix_cache": _prefix_cache(member),
        "prompt_cost": _prompt_cost(member),
        "kv_events": None if member.prompts.events is None else _kv_events(member.prompts.events),
        "version": member.version,
        "models": None if member.models is None else sorted(member.models),
        "tokens_per_byte": fleet.token_ratios.of(member.models or ()),
    }


def _prefix_cache(member: Member) -> dict[str, Any]:
    prompts = member.prompts
    prefixes, trust, coverage = prompts.sent, prompts.trust, prompts.coverage
    return {
        "capacity_tokens": prefixes.capacity,
        "held_tokens": prefixes.tokens,
        "predicted_tokens": prefixes.predicted_tokens,
        "prompt_tokens": prefixes.prompt_tokens,
        "recent_tokens": trust.recent._asdict(),
        "trust": trust.share if trust.is_measured else None,
        "tokens_known_by": coverage.tokens,
        "blind_share": coverage.blind_share,
        "regret_tokens": coverage.regret,
    }


def _prompt_cost(member: Member) -> dict[str, Any] | None:
    """The measured costs of prompts on this engine; None without --routing-threshold auto."""
    costs = member.speed.counts.costs
    if costs is None:
        return None
    computing, loading = costs.computing.sums.line(), costs.loading.sums.line()
    return {
        "computing": None if computing is None else computing._asdict(),
        "loading": None if loading is None else loading._asdict(),
    }


def _kv_events(cache: EngineCache) -> dict[str, Any]:
    return {
        "state": cache.state,
        "is_whole": cache.is_whole,
        "predicted_tokens": cache.predicted,
        "measured_tokens": cache.measured,
        "share": cache.share,
        "sources": [_kv_source(source) for source in cache.sources],
    }


def _kv_source(source: KVSource) -> dict[str, Any]:
    blocks, stream = source.blocks, source.stream
    return {
        "endpoint": source.endpoint,
        "error": source.error,
        "block_size": blocks.block_size,
        "held_blocks": blocks.held,
        "held_tokens": blocks.held * (blocks.block_size or 0),
        "events": source.events,
        "batches": source.batches,
        "unreadable": source.unreadable,
        "gaps": stream.gaps,
        "replays": stream.replays,
        "restarts": stream.restarts,
        "losses": stream.losses,
        "orphan_blocks": blocks.orphans,
        "ignored_blocks": blocks.ignored,
    }


def _exclusion_seconds(member: Member, now: float) -> float | None:
    began = exclusion_since(member)
    return None if began is None else now - began


def time_of_day(monotonic: float | None, now: float) -> str | None:
    """A time of the monotonic clock in UTC; `now` is the current time of that clock."""
    if monotonic is None:
        return None
    at = time.time() - (now - monotonic)  # noqa: TID251 - an operator reads the time of day
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def clock(monotonic: float) -> str:
    """The same as hours, minutes and seconds."""
    return str(time_of_day(monotonic, time.monotonic()))[11:19]
