"""Deadlines that clients set with `--request-deadlines on`: `x-slo-ttft-ms`, milliseconds to the
first token, and `x-request-timeout`, seconds to the end of the answer.

A request whose first token is expected too late on every engine is refused at once. Otherwise, with
more load than engines can serve, each answer would come too late. Expected are the prompts ahead
and the wait for a slot; what has not been measured counts nothing.
"""

import math
from collections.abc import Mapping
from typing import Final

from router.core.errors import BadRequest, NoEngine, Overloaded
from router.core.request_facts import Facts
from router.core.routing.schedule import Scheduler
from router.core.values import DECODE, PREFILL, REMOTE, Decision, Role

__all__ = ["FIRST_TOKEN", "WHOLE", "check", "first_token_seconds", "seconds_of"]

FIRST_TOKEN: Final = b"x-slo-ttft-ms"
WHOLE: Final = b"x-request-timeout"

UNITS: Final = {FIRST_TOKEN: 1e-3, WHOLE: 1.0}
"""Seconds."""

MAX_RETRY_SECONDS: Final = 60


def seconds_of(fields: Mapping[bytes, bytes], header: bytes) -> float | None:
    """The deadline in a header, in seconds from the request's arrival; None without it. Raises
    BadRequest."""
    given = fields.get(header)
    if given is None:
        return None
    try:
        number = float(given)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        name = header.decode()
        raise BadRequest(f"{name} must be a number above 0.", name)
    return number * UNITS[header]


def check(
    scheduler: Scheduler, facts: Facts, decision: Decision, limit: float, waited: float, now: float
) -> None:
    """Raise Overloaded if the first token is expected later than `limit` seconds after the
    request's arrival, which was `waited` seconds ago."""
    expected = waited + first_token_seconds(scheduler, facts, decision, now)
    if expected > limit:
        raise Overloaded(
            f"The first token is expected after {1000 * expected:.0f} ms, later than the request's "
            f"{FIRST_TOKEN.decode()} of {1000 * limit:.0f}.",
            retry_after=min(MAX_RETRY_SECONDS, math.ceil(expected - limit)),
        )


def first_token_seconds(
    scheduler: Scheduler, facts: Facts, decision: Decision, now: float
) -> float:
    """Expected seconds from now to the first token, on the best engines; 0 if there is none,
    because the plan finds that too."""
    try:
        if decision.mode is REMOTE:
            prefill = _soonest(scheduler, PREFILL, facts, now, computes=True)
            return prefill + _soonest(scheduler, DECODE, facts, now, computes=False)
        return _soonest(scheduler, DECODE, facts, now, computes=True)
    except NoEngine:
        return 0.0


def _soonest(
    scheduler: Scheduler, role: Role, facts: Facts, now: float, *, computes: bool
) -> float:
    fleet, ranking = scheduler.fleet, scheduler.rank(role, facts, now=now)
    pairs = zip(ranking.candidates, ranking.uncached, strict=True)
    return min(
        fleet.first_token_delay(fleet.member(c.endpoint), own if computes else None, now)
        for c, own in pairs
    )
