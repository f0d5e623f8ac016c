"""Metrics of each engine in the fleet; those of engines that have left are removed."""

from collections.abc import Sequence

from router.core.events import LegAnswered, LegFailed, SpeedProbed
from router.core.values import PREFILL, Endpoint, Role
from router.telemetry.batched import BatchedCounter, BatchedHistogram, BatchedSeries
from router.telemetry.families import Families

__all__ = ["EngineCounts"]


class EngineCounts:
    """Series by endpoint."""

    def __init__(self, families: Families, series: BatchedSeries) -> None:
        self._families = families
        self._series = series
        self._answers: dict[tuple[Endpoint, int], BatchedCounter] = {}
        """By endpoint and status."""
        self._ttft: dict[Endpoint, BatchedHistogram] = {}
        self._gaps: dict[Endpoint, BatchedHistogram] = {}
        """Times between tokens of decode engines' streams."""
        self.shown: set[Endpoint] = set()
        """The endpoints that have series."""

    def follow(self, current: Sequence[Endpoint]) -> set[Endpoint]:
        """Set the engines. Adds their series, and removes those of other engines, which are
        returned."""
        families, series = self._families, self._series
        gone = self.shown.difference(current)
        for endpoint in gone:
            self._forget(endpoint)
        for endpoint in current:
            if endpoint in self.shown:
                continue
            families.begin_at_zero(endpoint)
            labels = endpoint.role, endpoint.url
            self._ttft[endpoint] = series.histogram(families.endpoint_ttft, *labels)
            if endpoint.role is Role.DECODE:
                self._gaps[endpoint] = series.histogram(families.gap, *labels)
        self.shown = set(current)
        return gone

    def _forget(self, endpoint: Endpoint) -> None:
        families, series = self._families, self._series
        statuses = [status for known, status in self._answers if known == endpoint]
        for status in statuses:
            del self._answers[endpoint, status]
            series.drop(families.answers, endpoint.role, endpoint.url, status)
        for family, kept in ((families.endpoint_ttft, self._ttft), (families.gap, self._gaps)):
            if kept.pop(endpoint, None) is not None:
                series.drop(family, endpoint.role, endpoint.url)
        families.forget(endpoint, statuses)

    # Events of an engine may arrive after it was removed.

    def probed(self, event: SpeedProbed) -> None:
        """Count a speed probe."""
        endpoint, outcome = event.endpoint, event.outcome
        if outcome and endpoint in self.shown:
            self._families.probes.labels(endpoint.role, endpoint.url, outcome).inc()

    def failed(self, event: LegFailed) -> None:
        """Count a leg that the engine did not answer or did not complete."""
        endpoint = event.endpoint
        if endpoint in self.shown:
            self._families.failures.labels(endpoint.role, endpoint.url, event.kind).inc()

    def answered(self, event: LegAnswered) -> None:
        """Count an answer. A prefill engine's answer begins with the first token."""
        endpoint, status = event.endpoint, event.status
        counter = self._answers.get((endpoint, status))
        if counter is None:
            if endpoint not in self.shown:
                return
            labels = endpoint.role, endpoint.url, status
            counter = self._series.counter(self._families.answers, *labels)
            self._answers[endpoint, status] = counter
        counter.value += 1
        if endpoint.role is PREFILL and status < 400:
            self._ttft[endpoint].observe(event.seconds, event.trace_id)

    def streamed(
        self, endpoint: Endpoint, ttft: float, gap: float | None, trace_id: str | None
    ) -> None:
        """Count a complete stream of a decode engine. `ttft`: seconds to its first token; `gap`:
        mean seconds between its further reads, None if there were none."""
        of_engine = self._ttft.get(endpoint)
        if of_engine is None:
            return
        of_engine.observe(ttft, trace_id)
        if gap is not None:
            self._gaps[endpoint].observe(gap, trace_id)
