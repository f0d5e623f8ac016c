"""The metrics' counts as numbers: the live page is based on the same counts as Prometheus, those of
all worker processes together."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from prometheus_client.metrics_core import Metric

from router.core.values import Endpoint, Role

__all__ = ["NAMES", "Buckets", "Totals", "totals_of"]

NAMES: Final = frozenset(
    {
        "pd_router_requests_total",
        "pd_router_requests_failed_total",
        "pd_router_decisions_total",
        "pd_router_fallbacks_total",
        "pd_router_engine_answers_total",
        "pd_router_time_to_first_byte_seconds_bucket",
        "pd_router_endpoint_time_to_first_token_seconds_bucket",
    }
)
"""Names of the samples that `totals_of` reads: about a third of all."""

Buckets = Mapping[float, float]
"""A histogram: number of values up to each bound, infinity included."""

Pair = tuple[str, str]
K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts since the start."""

    requests: Mapping[str, float] = field(default_factory=dict)
    """By outcome."""
    failures: float = 0.0
    """Requests that failed for other reasons than their clients."""
    decisions: Mapping[Pair, float] = field(default_factory=dict)
    """By mode and reason."""
    fallbacks: Mapping[Pair, float] = field(default_factory=dict)
    """By leg and reason."""
    answers: Mapping[Endpoint, float] = field(default_factory=dict)
    ttft: Buckets = field(default_factory=dict)
    """Of all streams, from the request's arrival on."""
    endpoint_ttft: Mapping[Endpoint, Buckets] = field(default_factory=dict)
    """Of each decode engine's streams and each prefill engine's prefills, from the engine request
    on."""


def totals_of(families: Iterable[Metric]) -> Totals:
    """Read the needed families; others are skipped."""
    requests: dict[str, float] = {}
    failures = 0.0
    decisions: dict[Pair, float] = {}
    fallbacks: dict[Pair, float] = {}
    answers: dict[Endpoint, float] = {}
    ttft: dict[float, float] = {}
    by_endpoint: dict[Endpoint, dict[float, float]] = {}
    for family in families:
        for name, labels, value, *_ in family.samples:
            match name:
                case "pd_router_requests_total":
                    _add(requests, labels["outcome"], value)
                case "pd_router_requests_failed_total":
                    failures += value
                case "pd_router_decisions_total":
                    _add(decisions, (labels["mode"], labels["reason"]), value)
                case "pd_router_fallbacks_total":
                    _add(fallbacks, (labels["leg"], labels["reason"]), value)
                case "pd_router_engine_answers_total":
                    _add(answers, _endpoint(labels), value)
                case "pd_router_time_to_first_byte_seconds_bucket" if labels["stream"] == "true":
                    _add(ttft, float(labels["le"]), value)
                case "pd_router_endpoint_time_to_first_token_seconds_bucket":
                    buckets = by_endpoint.setdefault(_endpoint(labels), {})
                    _add(buckets, float(labels["le"]), value)
    return Totals(requests, failures, decisions, fallbacks, answers, ttft, by_endpoint)


def _add(counts: dict[K, float], key: K, value: float) -> None:
    counts[key] = counts.get(key, 0.0) + value


def _endpoint(labels: Mapping[str, str]) -> Endpoint:
    return Endpoint(labels["endpoint"], Role(labels["role"]))
