"""The body of GET /endpoints: the state of each engine, for operators and the gate."""

import time
from datetime import UTC, datetime
from typing import Any

from router.core.fleet import status
from router.core.fleet.fleet import Fleet
from router.core.fleet.member import Member
from router.core.health import State
from router.core.prefix.kv_source import EngineCache, KVSource
from router.core.values import Role

__all__ = ["clock", "endpoints", "entry", "time_of_day"]


def endpoints(fleet: Fleet) -> list[dict[str, Any]]:
    """One entry per endpoint. Durations are in seconds, until or since now; times are UTC, as in
    the log; None: unknown."""
    now = time.monotonic()
    return [entry(fleet, member, now) for member in fleet]


def entry(fleet: Fleet, member: Member, now: float) -> dict[str, Any]:
    """The entry of one endpoint; see `endpoints`."""
    view, speed = member.view, member.speed
    is_prefill = member.endpoint.role is Role.PREFILL
    seconds = speed.per_prompt_token if is_prefill else speed.per_token
    return {
        "url": member.endpoint.url,
        "role": member.endpoint.role,
        "state": State.DRAINING if member.is_drained else member.health.state,
        "source": member.source,
        "is_leaving": member.leaving_since is not None,
        "exclusion": member.exclusion,
        "cause": status.cause(member),
        "since": time_of_day(status.since(member), now),
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
        "gauges_age_seconds": None if member.scraped_at is None else now - member.scraped_at,
        "gauges_error": member.gauges_error,
        "slots": None if member.capacity.slots == float("inf") else member.capacity.slots,
        "seconds_per_token": seconds,
        "slowdown": view.slowdown if seconds is not None else None,
        "slow_start_weight": view.slow_start_weight,
        "expected_delay_seconds": fleet.expected_delay(member),
        "prefix_cache": _prefix_cache(member),
        "prompt_cost": _prompt_cost(member),
        "kv_events": None if member.cache is None else _kv_events(member.cache),
        "version": member.version,
        "models": None if member.models is None else sorted(member.models),
        "tokens_per_byte": fleet.token_ratios.of(member.models or ()),
    }


def _prefix_cache(member: Member) -> dict[str, Any]:
    prefixes, trust, coverage = member.prefixes, member.prefix_trust, member.prefix_coverage
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
    costs = member.speed.costs
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
    began = status.exclusion_since(member)
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
