"""The data of the live page and pd-router top, as one JSON document a second: the entries of GET
/endpoints, rates and quantiles of the last minute, routing decisions, and a verdict."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Literal

import orjson

from router import __version__
from router.core.fleet.fleet import Fleet
from router.core.fleet.status import StatusLog, pool_status, status
from router.core.health import State
from router.core.judge.member import Member
from router.core.judge.verdict import Exclusion
from router.core.values import Role
from router.telemetry.sums import Totals
from router.web.dashboard.window import EndpointCounts, Reading, Window, quantile
from router.web.engines_api import entry, time_of_day

__all__ = ["Figures", "Readings", "Severity", "severity", "verdict"]

Json = dict[str, Any]

Severity = Literal["good", "warn", "bad"]

BAD: Final = (State.DOWN, Exclusion.EJECTED, Exclusion.STALLED)

MAX_NAMED: Final = 5
"""Most engines that are named; the tables have all of them."""

PLOTTED: Final = ("in_flight", "tokens_per_second", "slowdown")
"""Fields of an endpoint that are plotted for the last minute."""

PLOTTED_SAMPLES: Final = 60
"""Number of samples, one a second, that are plotted."""

REST_SECONDS: Final = 10.0
"""Seconds between readings without a viewer. The first sample covers up to so much more than a
minute."""

REST_RATIO: Final = 200.0
"""Least seconds between them per second that a reading takes. That is 18 ms with 100 engines, and a
second with 8 workers and 1,000 engines."""

ENGINES_PER_TURN: Final = 100
"""Engines whose figures are computed in one turn of the event loop, in about 6 ms."""


class Readings:
    """Reads all counts; `window` has the readings of the last minute."""

    def __init__(
        self,
        fleet: Fleet,
        totals: Callable[[], Awaitable[Totals]],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._fleet = fleet
        self._totals = totals
        self._clock = clock
        self._sleep = sleep
        self.window = Window()

    async def take(self) -> float:
        """Add a reading to the window. Returns its time."""
        totals = await self._totals()
        now = self._clock()
        counts = {member.endpoint: _counts(member) for member in self._fleet}
        self.window.add(Reading(now, totals, counts))
        return now

    async def take_for_ever(self) -> None:
        """Take readings without a viewer too, because the first one asks what has just failed."""
        took = 0.0
        while True:
            await self._sleep(max(REST_SECONDS, REST_RATIO * took))
            began = self._clock()
            if began - self.window.last.at >= REST_SECONDS / 2:  # else there is a viewer
                await self.take()
            took = self._clock() - began


class Figures:
    """Takes samples and keeps those of a minute. `has_prefill`: whether the router is meant to have
    prefill engines, also while there are none."""

    def __init__(
        self,
        fleet: Fleet,
        status_log: StatusLog,
        readings: Readings,
        is_draining: Callable[[], bool],
        has_prefill: Callable[[], bool] = lambda: False,
    ) -> None:
        self._fleet = fleet
        self._status_log = status_log
        self._readings = readings
        self._window = readings.window
        self._is_draining = is_draining
        self._has_prefill = has_prefill
        self._plotted: deque[Json] = deque(maxlen=PLOTTED_SAMPLES)

    async def sample(self) -> bytes:
        """The current figures, as JSON."""
        now = await self._readings.take()
        fleet, has_prefill = self._fleet, self._has_prefill()
        expected = {Role.DECODE, Role.PREFILL} if has_prefill else {Role.DECODE}
        shown = [role for role in Role if role in expected or fleet.pool(role)]
        lacks_prefill = has_prefill and not fleet.pools[Role.PREFILL].usable()
        usable = fleet.pools[Role.DECODE].usable()
        pools = [await self._pool(role, now) for role in shown]
        entries = [each for pool in pools for each in pool["endpoints"]]
        self._plotted.append(
            {f"{e['role']} {e['url']}": [e[name] for name in PLOTTED] for e in entries}
        )
        return orjson.dumps(
            {
                "version": __version__,
                "time": time_of_day(now, now),
                "is_draining": self._is_draining(),
                "window_seconds": self._window.seconds,
                "verdict": verdict(
                    entries,
                    usable,
                    lacks_prefill=lacks_prefill,
                    panics=[role for role in shown if fleet.is_panic(role)],
                ),
                "totals": self._summary(entries),
                "pools": pools,
                "decisions": self._decisions(),
                "fallbacks": self._fallbacks(),
                "changes": self._changes(now),
            }
        )

    def history(self) -> bytes:
        """The plotted fields of the last minute's samples, oldest first, as JSON."""
        return orjson.dumps({"fields": PLOTTED, "samples": list(self._plotted)})

    def _summary(self, entries: list[Json]) -> Json:
        window, decode = self._window, [e for e in entries if e["role"] is Role.DECODE]
        tokens = [e["tokens_per_second"] for e in decode if e["tokens_per_second"] is not None]
        ttft = window.ttft()
        return {
            "in_flight": sum(e["in_flight"] for e in decode),
            "requests_per_second": window.requests_per_second(),
            "tokens_per_second": sum(tokens) if tokens else None,
            "failures": window.failures(),
            "ttft_p50_seconds": quantile(0.5, ttft),
            "ttft_p99_seconds": quantile(0.99, ttft),
        }

    async def _pool(self, role: Role, now: float) -> Json:
        # Engines that join meanwhile are in the next sample.
        known = self._window.last.endpoints
        members = [each for each in self._fleet.pool(role) if each.endpoint in known]
        answers = self._window.answers()
        total = sum(answers.get(member.endpoint, 0.0) for member in members)
        entries = []
        for place, member in enumerate(members, 1):
            share = answers.get(member.endpoint, 0.0) / total if total else None
            entries.append(
                {**entry(self._fleet, member, now), **self._live(member), "share": share}
            )
            if place % ENGINES_PER_TURN == 0:
                await asyncio.sleep(0)
        return {
            "role": role,
            "status": pool_status(members),
            "seconds_per_token": self._fleet.pool_median(role),
            "endpoints": entries,
        }

    def _live(self, member: Member) -> Json:
        endpoint, window, gauges = member.endpoint, self._window, member.scrapes.gauges
        is_prefill = endpoint.role is Role.PREFILL
        rate = window.prompt_tokens_per_second if is_prefill else window.tokens_per_second
        ttft = window.ttft(endpoint)
        return {
            "status": status(member),
            "severity": severity(status(member), speed_probes_fail=member.speed_probes_fail),
            "kv_cache_usage": gauges.kv_usage if gauges and member.health.is_up else None,
            "tokens_per_second": rate(endpoint),
            "prefix_hit_ratio": window.hit_ratio(endpoint),
            "ttft_p50_seconds": quantile(0.5, ttft),
            "ttft_p99_seconds": quantile(0.99, ttft),
        }

    def _decisions(self) -> list[Json]:
        found, since_start = self._window.decisions(), self._window.last.totals.decisions
        ordered = sorted(found.items(), key=lambda item: (-item[1], item[0]))
        return [
            {"mode": key[0], "reason": key[1], "count": count, "total": since_start[key]}
            for key, count in ordered
        ]

    def _fallbacks(self) -> list[Json]:
        found, since_start = self._window.fallbacks(), self._window.last.totals.fallbacks
        ordered = sorted(found.items(), key=lambda item: (-item[1], item[0]))
        return [
            {"leg": key[0], "reason": key[1], "count": count, "total": since_start[key]}
            for key, count in ordered
            if since_start[key]
        ]

    def _changes(self, now: float) -> list[Json]:
        """The latest changes, newest first."""
        return [
            {"time": time_of_day(at, now), "is_bad": notice.is_bad, "text": notice.text}
            for at, notice in reversed(self._status_log.recent)
        ]


def _counts(member: Member) -> EndpointCounts:
    counted, gauges = member.speed.counts.counted, member.scrapes.gauges
    return EndpointCounts(
        counted.events,
        member.speed.counts.calibration.tokens_per_event,
        counted.begun + counted.whole_tokens,
        gauges.cache_queries if gauges else None,
        gauges.cache_hits if gauges else None,
    )


def severity(status: State | Exclusion, *, speed_probes_fail: bool = False) -> Severity:
    """The severity of an engine's status. Speed probes are made only where something is wrong."""
    if status is State.UP:
        return "warn" if speed_probes_fail else "good"
    return "bad" if status in BAD else "warn"


def verdict(
    engines: Sequence[Json],
    usable: int,
    *,
    lacks_prefill: bool = False,
    panics: Sequence[Role] = (),
) -> Json:
    """The verdict on the entries of engines: number of problems, worst severity, and a sentence.
    `usable`: how many decode engines may get requests. `lacks_prefill`: there should be prefill
    engines, but none may get requests. `panics`: the roles whose excluded engines are used."""
    troubled = [each for level in ("bad", "warn") for each in engines if each["severity"] == level]
    found = [_trouble(each) for each in troubled]
    if len(found) > MAX_NAMED:
        found[MAX_NAMED:] = [f"and {len(found) - MAX_NAMED} more"]
    worst = troubled[0]["severity"] if troubled else "warn" if lacks_prefill else "good"
    found[:0] = [f"Panic: {role} engines that are not in order get requests" for role in panics]
    if lacks_prefill:  # the decode engines compute all prompts
        found.insert(0, "No prefill engine can take requests")
    if not usable:
        worst = "bad"
        found.insert(0, "No decode engine can take requests")
    return {
        "severity": worst,
        "troubles": len(troubled) + lacks_prefill + (not usable),
        "text": "; ".join(found) or "All engines are up",
    }


def _trouble(engine: Json) -> str:
    text = f"{engine['role']} {engine['url'].partition('://')[2]} is {engine['status']}"
    return f"{text}, and its speed probes fail" if engine["speed_probes_fail"] else text
