"""The latencies of a traced request name its trace, in one process and in several."""

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from router.core.events import LegAnswered, RequestEnded
from router.core.fleet.fleet import Fleet
from router.core.fleet.ledger import Ledger
from router.core.health import HealthThresholds
from router.core.values import Endpoint, Mode, Role
from router.telemetry.exposition import OPEN_METRICS
from router.telemetry.metrics import Metrics
from tests.telemetry.metrics_bench import worker_group

P0 = Endpoint("http://p0", Role.PREFILL)
D0 = Endpoint("http://d0", Role.DECODE)


def ended(trace_id: str | None) -> RequestEnded:
    """A stream of two legs."""
    record = RequestEnded("r", "/v1/completions", 100.0)
    record.stream, record.mode, record.decode = True, Mode.REMOTE, D0
    record.status, record.outcome, record.chunks = 200, "ok", 3
    record.prefill_seconds, record.prefilled_at, record.asked_at = 0.5, 100.5, 100.5
    record.first_byte, record.ended, record.trace_id = 101.0, 104.0, trace_id
    return record


def left(trace_id: str | None) -> RequestEnded:
    """A client that did not wait for the first token."""
    record = RequestEnded("l", "/v1/completions", 100.0)
    record.stream, record.ended = True, 109.0
    record.outcome, record.trace_id = "client_left", trace_id
    return record


def prefilled(trace_id: str | None) -> LegAnswered:
    """A prefill engine's answer."""
    return LegAnswered(P0, 200, 0.25, trace_id=trace_id)


def exemplars(metrics: Metrics) -> dict[str, dict[str, float]]:
    """By family: traces, with what was measured of them. Fails unless it is OpenMetrics."""
    metrics.publish()
    pieces = (*metrics.counts(OPEN_METRICS), *metrics.state(OPEN_METRICS), OPEN_METRICS.end)
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(b"".join(pieces).decode()):  # type: ignore[no-untyped-call]
        for sample in family.samples:
            if sample.exemplar is not None:
                of_family = found.setdefault(family.name.removeprefix("pd_router_"), {})
                of_family[sample.exemplar.labels["trace_id"]] = sample.exemplar.value
    return found


@pytest.fixture(params=[False, True], ids=["one process", "several workers"])
def metrics(request: pytest.FixtureRequest) -> Metrics:
    fleet = Fleet((P0, D0), Ledger(), HealthThresholds(), stale_after=3.0)
    return Metrics(fleet, list, worker_group() if request.param else None)


def test_each_latency_of_a_traced_request_names_its_trace(metrics: Metrics) -> None:
    metrics.observe([ended("a1"), left("b2"), prefilled("c3")])
    assert exemplars(metrics) == {
        "request_duration_seconds": {"a1": 4.0, "b2": 9.0},
        "time_to_first_byte_seconds": {"a1": 1.0},
        "prefill_duration_seconds": {"a1": 0.5},
        "handover_seconds": {"a1": 0.5},
        "endpoint_time_to_first_token_seconds": {"a1": 0.5, "c3": 0.25},
        "inter_token_latency_seconds": {"a1": 1.5},
        "abandoned_wait_seconds": {"b2": 9.0},
    }


def test_untraced_requests_keep_the_exemplars(metrics: Metrics) -> None:
    metrics.observe([ended("a1"), prefilled("c3")])
    before = exemplars(metrics)
    metrics.observe([ended(None), left(None), prefilled(None)])
    assert exemplars(metrics) == before != {}
