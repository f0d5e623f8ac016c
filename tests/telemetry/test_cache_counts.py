"""Metrics of the engines' prefix caches and KV-cache events."""

from router.core.fleet.fleet import Fleet
from router.core.fleet.ledger import Ledger
from router.core.health import HealthThresholds
from router.core.kv_events.kv_sources import EngineCache
from router.core.kv_events.lookups import CacheEvents
from router.core.membership.entry import Entry
from router.core.prefix.trust import EVENTS, HISTORY, NOTHING
from router.telemetry.metrics import Metrics
from tests.core.kv_events.test_kv_sources import source_of
from tests.telemetry.metrics_bench import D0, Bench


class Told(Bench):
    """A fleet whose engines publish KV-cache events."""

    def __init__(self) -> None:
        super().__init__()
        self.events = CacheEvents()
        self.fleet = Fleet([D0], Ledger(), HealthThresholds(), 3.0, cache_events=self.events)
        self.metrics = Metrics(self.fleet, lambda: self.connections)
        cache = self.fleet.member(D0).prompts.events
        assert cache is not None
        self.cache: EngineCache = cache

    def states(self) -> set[str]:
        """Those that the engine's events are in."""
        found = self.samples("pd_router_endpoint_kv_events_state")
        return {labels["state"] for labels, value in found if value}


def test_a_fleet_without_kv_events_has_no_event_metrics() -> None:
    bench = Bench()
    assert bench.samples("pd_router_kv_events_total") == []
    assert bench.samples("pd_router_endpoint_kv_events_state") == []


def test_counters_begin_at_zero_and_follow_the_totals() -> None:
    told = Told()
    assert told.value("pd_router_kv_events_total", endpoint=D0.url) == 0
    assert told.value("pd_router_kv_event_troubles_total", kind="gap") == 0
    source = source_of(told.events.blocks)
    told.cache.replace([source])
    source.events = 7
    source.stream.gaps = 2
    told.cache.measure(1_000, 900)
    for _ in range(2):
        assert told.value("pd_router_kv_events_total") == 7
        assert told.value("pd_router_kv_event_troubles_total", kind="gap") == 2
        assert told.value("pd_router_kv_event_troubles_total", kind="replay") == 1
        assert told.value("pd_router_cached_prompt_tokens_total", kind="predicted") == 1_000
        assert told.value("pd_router_cached_prompt_tokens_total", kind="measured") == 900
    told.cache.replace([source_of(told.events.blocks)])
    assert told.value("pd_router_kv_events_total") == 7
    assert told.value("pd_router_kv_event_troubles_total", kind="replay") == 2


def test_another_engine_at_the_same_url_goes_on_counting() -> None:
    told = Told()
    source = source_of(told.events.blocks)
    told.cache.replace([source])
    source.events = 7
    assert told.value("pd_router_kv_events_total") == 7
    told.fleet.apply([Entry(D0, 1, "another")], 1.0)
    cache = told.fleet.member(D0).prompts.events
    assert cache is not None
    other = source_of(told.events.blocks)
    cache.replace([other])
    other.events = 3
    for _ in range(2):
        assert told.value("pd_router_kv_events_total") == 10


def test_state_and_held_blocks_are_gauges() -> None:
    told = Told()
    assert told.states() == set()
    source = source_of(told.events.blocks)
    told.cache.replace([source])
    assert told.states() == {"live"}
    assert told.value("pd_router_endpoint_kv_events_held_blocks") == 4
    source.is_connected = False
    assert told.states() == {"connecting"}


def test_an_engine_without_prefix_cache_counters_gives_no_prompt_count() -> None:
    bench = Bench()
    assert bench.samples("pd_router_prefix_cache_prompt_tokens_total") == []
    assert bench.samples("pd_router_prefix_cache_regret_tokens_total") == []


def test_prompts_are_counted_by_source_of_knowledge_and_so_is_regret() -> None:
    bench = Bench()
    coverage = bench.fleet.member(D0).prompts.coverage
    coverage.add(1_000, HISTORY, 0)
    coverage.add(500, NOTHING, 20)
    for _ in range(2):
        found = bench.samples("pd_router_prefix_cache_prompt_tokens_total")
        tokens = {labels["known_by"]: value for labels, value in found}
        assert tokens == {"events": 0, "history": 1_000, "nothing": 500}
        assert bench.value("pd_router_prefix_cache_regret_tokens_total", endpoint=D0.url) == 20
    coverage.add(70, EVENTS, 5)
    assert bench.value("pd_router_prefix_cache_prompt_tokens_total", known_by="events") == 70
    assert bench.value("pd_router_prefix_cache_regret_tokens_total") == 25
    bench.fleet.apply([], 1.0)
    bench.metrics.follow()
    assert bench.samples("pd_router_prefix_cache_prompt_tokens_total") == []
    assert bench.samples("pd_router_prefix_cache_regret_tokens_total") == []
