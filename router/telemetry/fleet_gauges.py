"""Gauges that are read from the fleet when Prometheus scrapes."""

import math
import time
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from router.core.fleet.fleet import Fleet
from router.core.fleet.probing import NO_GAUGES
from router.core.health import State
from router.core.judge.verdict import Exclusion
from router.core.kv_events import SourceState
from router.core.values import Endpoint, Role

__all__ = ["Connections", "FleetCollector"]

Connections = Callable[[], Iterable[tuple[Endpoint, int, int]]]
"""Endpoint, open connections, idle ones among them."""


PREFIX_KINDS = ("prompt", "predicted", "looked_up", "found")
"""Values of the label `kind`, by the fields of `RecentTokens`."""


class FleetCollector(Collector):
    """A collector of gauges that reads the fleet at scrape time."""

    def __init__(
        self,
        fleet: Fleet,
        connections: Connections,
        threshold: Callable[[], float],
        has_prefill: Callable[[], bool],
    ) -> None:
        self._fleet = fleet
        self._connections = connections
        self._threshold = threshold
        self._has_prefill = has_prefill

    def collect(self) -> Iterator[Metric]:
        """The current gauges."""
        yield from self._endpoint_gauges()
        yield from self._speed_gauges()
        yield from self._prefix_gauges()
        yield from self._states()
        yield from self._pool_gauges()
        yield self._connection_gauges()
        yield self._token_ratios()
        yield self._transfers()
        yield GaugeMetricFamily(
            "pd_router_routing_threshold_tokens",
            "Prompt tokens from which prompts are prefilled remotely; with auto, at this moment.",
            value=self._threshold(),
        )
        yield from self._kv_gauges()

    def _endpoint_gauges(self) -> Iterator[Metric]:
        in_flight = _gauge("endpoint_in_flight_requests", "In-flight requests of this router.")
        tokens = _gauge(
            "endpoint_in_flight_tokens",
            "Estimated input tokens of the in-flight requests of this router.",
        )
        others = _gauge(
            "endpoint_other_requests", "Requests of other clients, by the engine's gauges."
        )
        siblings = _gauge(
            "endpoint_peer_requests", "In-flight requests of sibling replicas (--peers)."
        )
        kv = _gauge(
            "endpoint_kv_cache_usage_ratio",
            "Share of the KV cache in use, 0 to 1, by the engine's gauge.",
        )
        slots = _gauge("endpoint_slots", "Sequences that the engine runs concurrently, if known.")
        age = _gauge(
            "endpoint_scrape_age_seconds",
            "Age of the engine's gauges; +Inf: never read; absent: it has none.",
        )
        now = time.monotonic()
        ledger = self._fleet.ledger
        for member in self._fleet:
            names = _names(member.endpoint)
            in_flight.add_metric(names, ledger.in_flight(member.endpoint))
            tokens.add_metric(names, ledger.tokens(member.endpoint))
            if ledger.peers is not None:
                siblings.add_metric(names, ledger.peers.requests(member.endpoint))
            if not math.isinf(member.capacity.slots):
                slots.add_metric(names, member.capacity.slots)
            scrapes, is_up = member.scrapes, member.health.is_up
            if scrapes.scraped_at is not None:
                age.add_metric(names, now - scrapes.scraped_at)
            elif is_up and scrapes.unread_since is not None and scrapes.error != NO_GAUGES:
                age.add_metric(names, math.inf)  # an alert could not see an absent series
            if not is_up:
                continue  # engines that are down are not scraped, and their gauges are stale
            if member.other_requests is not None:
                others.add_metric(names, member.other_requests)
            if scrapes.gauges is not None and scrapes.gauges.kv_usage is not None:
                kv.add_metric(names, scrapes.gauges.kv_usage)
        yield from (in_flight, tokens, others, siblings, kv, slots, age)

    def _speed_gauges(self) -> Iterator[Metric]:
        speed = _gauge(
            "endpoint_speed",
            "Recent tokens per second of one stream (prefill: prompt tokens).",
        )
        relative = _gauge(
            "endpoint_relative_speed",
            "Speed over the median of the pool's engines with the same models.",
        )
        delay = _gauge(
            "endpoint_expected_delay_seconds",
            "Expected duration of a request of mean length at this moment.",
        )
        exclusion = _gauge(
            "endpoint_excluded",
            "1 while the engine is excluded from new requests for this reason (slow: gets few, "
            "with shortest_expected_delay).",
            "reason",
        )
        for member in self._fleet:
            names = _names(member.endpoint)
            is_prefill = member.endpoint.role is Role.PREFILL
            gap = member.speed.per_prompt_token if is_prefill else member.speed.per_token
            if gap:
                speed.add_metric(names, 1 / gap)
                relative.add_metric(names, 1 / member.view.slowdown)
            if (seconds := self._fleet.expected_delay(member)) is not None:
                delay.add_metric(names, seconds)
            for reason in Exclusion:
                exclusion.add_metric([*names, reason], float(member.exclusion is reason))
        yield from (speed, relative, delay, exclusion)

    def _prefix_gauges(self) -> Iterator[Metric]:
        held = _gauge(
            "endpoint_prefix_cache_held_tokens",
            "Prompt tokens in the engine's prefix cache, as known to this router.",
        )
        recent = _gauge(
            "endpoint_prefix_cache_recent_tokens",
            "Prompt tokens of the last twenty scrapes, weighted by age: sent (prompt, estimated), "
            "predicted to be cached, looked up and found (the engine's counters).",
            "kind",
        )
        trust = _gauge(
            "endpoint_prefix_cache_trust",
            "Share of predicted cached tokens that the engine's counters confirm.",
        )
        for member in self._fleet:
            names = _names(member.endpoint)
            held.add_metric(names, member.prompts.sent.tokens)
            tokens = member.prompts.trust.recent
            for kind, value in zip(PREFIX_KINDS, tokens, strict=True):
                recent.add_metric([*names, kind], value)
            if member.prompts.trust.is_measured:
                trust.add_metric(names, member.prompts.trust.share)
        yield from (held, recent, trust)

    def _states(self) -> Iterator[Metric]:
        gauge = _gauge("endpoint_state", "1 for the current state.", "state")
        drained = _gauge("endpoint_drained", "1 while a source or an operator drains the engine.")
        for member in self._fleet:
            current = State.DRAINING if member.is_drained else member.health.state
            for state in State:
                is_in = float(current is state)
                gauge.add_metric([*_names(member.endpoint), state], is_in)
            drained.add_metric(_names(member.endpoint), float(member.is_drained))
        yield from (gauge, drained)

    def _pool_gauges(self) -> Iterator[Metric]:
        """Gauges of every configured pool, also of an empty one, since an alert could not see an
        absent series."""
        usable = GaugeMetricFamily(
            "pd_router_pool_usable_engines",
            "Engines that can get new requests; 0 for an empty pool.",
            labels=["role"],
        )
        panic = GaugeMetricFamily(
            "pd_router_pool_panic",
            "1 while excluded engines get requests, because too few others are up.",
            labels=["role"],
        )
        for role in Role:
            is_expected = role is Role.DECODE or (role is Role.PREFILL and self._has_prefill())
            if is_expected or self._fleet.pool(role):
                usable.add_metric([role], self._fleet.pools[role].usable())
                panic.add_metric([role], float(self._fleet.is_panic(role)))
        yield from (usable, panic)

    def _token_ratios(self) -> Metric:
        gauge = GaugeMetricFamily(
            "pd_router_tokens_per_byte",
            "Prompt tokens per byte of text, from the usage that engines report.",
            labels=["model"],
        )
        for model, ratio in self._fleet.token_ratios.of(self._fleet.models.known()).items():
            gauge.add_metric([model], ratio)
        return gauge

    def _transfers(self) -> Metric:
        gauge = GaugeMetricFamily(
            "pd_router_zone_handover_seconds",
            "Time from a remote prefill's answer to the first content of a stream, for 1,000 "
            "prompt tokens, between zones.",
            labels=["prefill_zone", "decode_zone"],
        )
        transfers = self._fleet.transfers
        for zones, line in () if transfers is None else transfers.lines().items():
            gauge.add_metric([zone or "" for zone in zones], line.seconds(1000))
        return gauge

    def _kv_gauges(self) -> Iterator[Metric]:
        state_of = _gauge(
            "endpoint_kv_events_state",
            "1 for the current state of the engine's KV-cache events.",
            "state",
        )
        held = _gauge(
            "endpoint_kv_events_held_blocks",
            "KV-cache blocks known from the engine's KV-cache events.",
        )
        for member in self._fleet:
            cache, names = member.prompts.events, _names(member.endpoint)
            if cache is None:
                continue
            for state in SourceState:
                state_of.add_metric([*names, state], float(cache.state is state))
            held.add_metric(names, sum(source.blocks.held for source in cache.sources))
        yield from (state_of, held)

    def _connection_gauges(self) -> Metric:
        gauge = _gauge("engine_connections", "Connections to engines, by state.", "state")
        for endpoint, is_open, idle in self._connections():
            gauge.add_metric([*_names(endpoint), "idle"], idle)
            gauge.add_metric([*_names(endpoint), "active"], max(0, is_open - idle))
        return gauge


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"pd_router_{name}", text, labels=["role", "endpoint", *labels])


def _names(endpoint: Endpoint) -> list[str]:
    return [endpoint.role, endpoint.url]
