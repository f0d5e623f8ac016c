"""A fleet in a sample."""

import asyncio
from typing import Any

import orjson
import pytest

from router.core.events import LegFailed, Probed, Scraped
from router.core.fleet.fleet import Fleet
from router.core.fleet.ledger import Ledger
from router.core.fleet.selection import Selection
from router.core.fleet.status import StatusLog
from router.core.health import HealthSignal, HealthThresholds
from router.core.membership.entry import Entry
from router.core.values import Endpoint, FailureKind, Gauges, Role
from router.telemetry.sums import Totals
from router.web.dashboard.figures import (
    ENGINES_PER_TURN,
    PLOTTED,
    PLOTTED_SAMPLES,
    REST_RATIO,
    REST_SECONDS,
    Figures,
    Readings,
)
from tests.core.fixtures import D0, D1, P0

RESTS = 5


class Rested(Exception):
    """So many rests between readings have passed."""


class Bench:
    """A fleet, its counts and its samples; a second passes between two of them."""

    def __init__(self, *endpoints: Endpoint) -> None:
        self.now = 100.0
        self.counts = Totals()
        self.fleet = Fleet(endpoints, Ledger(), HealthThresholds(), 5.0)
        self.log = StatusLog(
            *(self.fleet, self.fleet.pool, self.fleet.is_panic, self.now),
            avoids_slow=self.fleet.avoids_slow,
            time_of=str,
        )
        self.is_draining = self.has_prefill = False
        self.reading_seconds = 0.0
        self.rests: list[float] = []
        self.readings = Readings(self.fleet, self._totals, lambda: self.now, self._rest)
        self.figures = Figures(
            *(self.fleet, self.log, self.readings, lambda: self.is_draining),
            lambda: self.has_prefill,
        )

    async def _totals(self) -> Totals:
        self.now += self.reading_seconds
        return self.counts

    async def _rest(self, seconds: float) -> None:
        self.rests.append(seconds)
        if len(self.rests) % RESTS == 0:
            raise Rested
        self.now += seconds

    async def sample(self) -> Any:
        """The next one."""
        self.now += 1
        self.log.notices(self.now)
        return orjson.loads(await self.figures.sample())

    def up(self, *endpoints: Endpoint) -> None:
        """These answer a probe."""
        for endpoint in endpoints:
            self.fleet.observe(Probed(endpoint, HealthSignal.OK), self.now)


async def test_pools_stand_in_the_order_of_a_requests_way() -> None:
    bench = Bench(D0, P0, D1)
    bench.up(D0, P0, D1)
    sample = await bench.sample()
    assert [pool["role"] for pool in sample["pools"]] == ["prefill", "decode"]
    assert [e["url"] for e in sample["pools"][1]["endpoints"]] == [D0.url, D1.url]
    assert [pool["role"] for pool in (await Bench(D0).sample())["pools"]] == ["decode"]


async def test_the_event_loop_turns_while_a_sample_of_many_engines_is_made() -> None:
    engines = [Endpoint(f"http://p{number}", Role.PREFILL) for number in range(ENGINES_PER_TURN)]
    bench = Bench(*engines, D0)
    later = [*engines[1:], D0, D1]
    turned: list[float] = []

    def change() -> None:
        turned.append(bench.now)
        bench.fleet.apply([Entry(each, row) for row, each in enumerate(later)], bench.now)

    asyncio.get_running_loop().call_soon(change)
    # An engine that leaves meanwhile is still in it; one that joins is in the next one.
    for expected in ([*engines, D0], later):
        pools = (await bench.sample())["pools"]
        assert turned == [101.0]
        urls = [each["url"] for pool in pools for each in pool["endpoints"]]
        assert urls == [each.url for each in expected]


async def test_without_any_engine_the_decode_pool_is_shown_and_the_verdict_is_bad() -> None:
    sample = await Bench().sample()
    [pool] = sample["pools"]
    assert (pool["role"], pool["endpoints"]) == ("decode", [])
    assert sample["verdict"] == {
        "severity": "bad",
        "troubles": 1,
        "text": "No decode engine can take requests",
    }


async def test_prefill_engines_that_should_be_there_and_are_not_are_a_warning() -> None:
    bench = Bench(D0)
    bench.up(D0)
    bench.has_prefill = True
    sample = await bench.sample()
    assert [(pool["role"], pool["status"]) for pool in sample["pools"]] == [
        ("prefill", "none is known yet"),
        ("decode", "1 of 1 up"),
    ]
    assert sample["verdict"] == {
        "severity": "warn",
        "troubles": 1,
        "text": "No prefill engine can take requests",
    }


async def test_the_verdict_is_that_of_the_engines_shown() -> None:
    bench = Bench(P0, D0, D1)
    bench.up(D0, D1)
    sample = await bench.sample()
    assert [e["severity"] for pool in sample["pools"] for e in pool["endpoints"]] == [
        *("warn", "good", "good")
    ]
    assert sample["verdict"]["text"] == "prefill p0:8000 is starting"
    bench.up(P0)
    assert (await bench.sample())["verdict"]["severity"] == "good"


async def test_unknown_values_are_null() -> None:
    sample = await Bench(D0).sample()
    [engine] = sample["pools"][0]["endpoints"]
    unknown = (
        *("kv_cache_usage", "tokens_per_second", "prefix_hit_ratio", "ttft_p50_seconds"),
        *("ttft_p99_seconds", "share", "slowdown", "slots"),
    )
    assert {name: engine[name] for name in unknown} == dict.fromkeys(unknown)
    assert engine["status"] == "starting"
    assert sample["totals"]["requests_per_second"] is None
    assert sample["totals"]["tokens_per_second"] is None


async def test_gauges_of_an_engine_that_is_down_are_not_shown() -> None:
    bench = Bench(D0)
    bench.up(D0)
    bench.fleet.observe(Scraped(D0, Gauges(kv_usage=0.5), 0), bench.now)
    assert (await bench.sample())["pools"][0]["endpoints"][0]["kv_cache_usage"] == 0.5
    for _ in range(3):
        bench.fleet.observe(LegFailed(D0, FailureKind.REFUSED), bench.now)
    assert (await bench.sample())["pools"][0]["endpoints"][0]["kv_cache_usage"] is None


async def test_a_prefill_engines_tokens_are_those_of_prompts() -> None:
    bench = Bench(P0, D0)
    bench.up(P0, D0)
    bench.fleet.observe(Scraped(P0, Gauges(cache_queries=0, cache_hits=0), 0), bench.now)
    await bench.sample()
    bench.fleet.observe(Scraped(P0, Gauges(cache_queries=300, cache_hits=100), 0), bench.now)
    sample = await bench.sample()
    [engine] = sample["pools"][0]["endpoints"]
    assert engine["tokens_per_second"] == 300
    assert engine["prefix_hit_ratio"] == pytest.approx(1 / 3)


async def test_shares_are_of_the_pool_and_counts_of_the_last_minute() -> None:
    bench = Bench(D0, D1)
    bench.counts = Totals(answers={D0: 100, D1: 0}, decisions={("direct", "short"): 100})
    await bench.sample()
    bench.counts = Totals(
        answers={D0: 101, D1: 3},
        decisions={("direct", "short"): 104, ("direct", "n"): 9},
        fallbacks={("decode", "reset"): 1, ("decode", "busy"): 0},
    )
    sample = await bench.sample()
    assert [e["share"] for e in sample["pools"][0]["endpoints"]] == [0.25, 0.75]
    assert [(d["reason"], d["count"], d["total"]) for d in sample["decisions"]] == [
        ("n", 9, 9),
        ("short", 4, 104),
    ]
    assert [(f["reason"], f["count"]) for f in sample["fallbacks"]] == [("reset", 1)]


async def rest(bench: Bench) -> None:
    """Let some rests pass without a viewer."""
    with pytest.raises(Rested):
        await bench.readings.take_for_ever()


async def test_a_first_viewer_sees_earlier_failures() -> None:
    bench = Bench(D0)
    await bench.readings.take()
    bench.counts = Totals(failures=26, answers={D0: 26}, decisions={("direct", "short"): 26})
    await rest(bench)
    sample = await bench.sample()
    assert sample["totals"]["failures"] == 26
    assert sample["pools"][0]["endpoints"][0]["share"] == 1
    assert [d["count"] for d in sample["decisions"]] == [26]
    await rest(bench)
    await rest(bench)
    assert (await bench.sample())["totals"]["failures"] == 0
    assert bench.readings.window.seconds <= 60 + REST_SECONDS


async def test_readings_without_a_viewer_take_a_small_share_of_the_time() -> None:
    bench = Bench(D0)
    await bench.readings.take()
    bench.reading_seconds = 1.0
    await rest(bench)
    assert bench.rests == [REST_SECONDS, *[REST_RATIO] * (RESTS - 1)]


async def test_changes_come_newest_first_with_their_times() -> None:
    bench = Bench(D0)
    bench.up(D0)
    await bench.sample()
    for _ in range(3):
        bench.fleet.observe(Probed(D0, HealthSignal.FAILED, error="gone"), bench.now)
    sample = await bench.sample()
    assert [change["is_bad"] for change in sample["changes"]] == [True, False]
    assert sample["changes"][0]["text"].endswith("; gone; 0 of 1 decode engines up")
    assert sample["changes"][1]["time"] <= sample["changes"][0]["time"] <= sample["time"]


async def test_the_history_has_a_minute_of_plotted_values() -> None:
    bench = Bench(D0)
    lease = Selection(bench.fleet).lease(D0, 10)
    for _ in range(PLOTTED_SAMPLES + 5):
        await bench.sample()
    lease.release()
    history = orjson.loads(bench.figures.history())
    assert history["fields"] == list(PLOTTED)
    assert history["samples"] == [{f"decode {D0.url}": [1, 0.0, None]}] * PLOTTED_SAMPLES


async def test_a_draining_router_reports_it() -> None:
    bench = Bench(D0)
    assert not (await bench.sample())["is_draining"]
    bench.is_draining = True
    assert (await bench.sample())["is_draining"]
