"""The live page's counts are those of the metrics."""

from prometheus_client import CollectorRegistry, Counter, Histogram

from router.core.values import Endpoint, Role
from router.telemetry.totals import NAMES, Totals, totals_of

D0 = Endpoint("http://d0:8000", Role.DECODE)


def test_counts_are_summed_over_the_other_labels() -> None:
    registry = CollectorRegistry()
    requests = Counter(
        *("pd_router_requests", "-", ["route", "mode", "status", "outcome"]), registry=registry
    )
    requests.labels("/v1/completions", "direct", 200, "ok").inc(2)
    requests.labels("/v1/completions", "remote_prefill", 200, "ok").inc(3)
    requests.labels("/v1/completions", "none", 503, "error").inc()
    Counter("pd_router_requests_failed", "-", registry=registry).inc(6)
    answers = Counter(
        *("pd_router_engine_answers", "-", ["role", "endpoint", "status"]), registry=registry
    )
    answers.labels("decode", D0.url, 200).inc(4)
    answers.labels("decode", D0.url, 500).inc()
    decisions = Counter("pd_router_decisions", "-", ["mode", "reason"], registry=registry)
    decisions.labels("direct", "below_threshold").inc(7)
    fallbacks = Counter("pd_router_fallbacks", "-", ["leg", "reason"], registry=registry)
    fallbacks.labels("decode", "stalled").inc()
    found = totals_of(registry.restricted_registry(NAMES).collect())
    assert found.requests == {"ok": 5, "error": 1}
    assert found.failures == 6
    assert found.answers == {D0: 5}
    assert found.decisions == {("direct", "below_threshold"): 7}
    assert found.fallbacks == {("decode", "stalled"): 1}


def test_times_to_first_token_are_those_of_streams() -> None:
    registry = CollectorRegistry()
    whole = Histogram(
        *("pd_router_time_to_first_byte_seconds", "-", ["mode", "stream"]),
        registry=registry,
        buckets=(0.1, 1),
    )
    whole.labels("direct", "true").observe(0.5)
    whole.labels("remote_prefill", "true").observe(0.05)
    whole.labels("direct", "false").observe(0.5)
    own = Histogram(
        *("pd_router_endpoint_time_to_first_token_seconds", "-", ["role", "endpoint"]),
        registry=registry,
        buckets=(0.1, 1),
    )
    own.labels(*D0[::-1]).observe(0.5)
    found = totals_of(registry.restricted_registry(NAMES).collect())
    assert found.ttft == {0.1: 1, 1: 2, float("inf"): 2}
    assert found.endpoint_ttft == {D0: {0.1: 0, 1: 1, float("inf"): 1}}


def test_of_other_families_nothing_is_taken() -> None:
    registry = CollectorRegistry()
    Counter("pd_router_relayed_bytes", "-", registry=registry).inc()
    assert totals_of(registry.collect()) == Totals()
    assert list(registry.restricted_registry(NAMES).collect()) == []
