"""What the router knows of each engine, for people at night and for the gate's evidence."""

import time
from typing import Any

from router.core.fleet import Fleet
from router.core.member import Aside, Member
from router.core.values import Role

__all__ = ["endpoints"]


def endpoints(fleet: Fleet) -> list[dict[str, Any]]:
    """One entry per endpoint; seconds are since or until now, None is not known."""
    now = time.monotonic()
    return [_entry(fleet, member, now) for member in fleet]


def _entry(fleet: Fleet, member: Member, now: float) -> dict[str, Any]:
    view, pace = member.view, member.pace
    is_prefill = member.endpoint.role is Role.PREFILL
    seconds = pace.per_prompt_token if is_prefill else pace.per_token
    return {
        "url": member.endpoint.url,
        "role": member.endpoint.role,
        "state": member.health.state,
        "set_aside": member.aside,
        "set_aside_seconds": _aside_seconds(member, now),
        "returns_in_seconds": None if member.outlier.until is None else member.outlier.until - now,
        "in_flight": view.in_flight,
        "in_flight_tokens": view.tokens,
        "others": view.others,
        "slots": None if view.slots == float("inf") else view.slots,
        "seconds_per_token": seconds,
        "times_the_usual": view.ratio if seconds is not None else None,
        "share": view.ramp,
        "expected_seconds": fleet.expected_seconds(member),
        "models": None if member.models is None else sorted(member.models),
    }


def _aside_seconds(member: Member, now: float) -> float | None:
    since = {
        Aside.STALLED: member.stall.since,
        Aside.SLOW: member.slow_since,
        Aside.EJECTED: member.outlier.since,
    }
    if member.aside is None or (began := since[member.aside]) is None:
        return None
    return now - began
