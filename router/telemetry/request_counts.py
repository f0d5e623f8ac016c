"""Metrics of requests that have ended."""

from collections.abc import Callable, Container
from dataclasses import dataclass

from router.core.events import RequestEnded
from router.core.values import Mode
from router.telemetry.batched import BatchedCounter, BatchedHistogram, BatchedSeries
from router.telemetry.engine_counts import EngineCounts
from router.telemetry.families import Families

__all__ = ["RequestCounts"]

MAX_MODEL_SERIES = 4096
"""Most series by model and outcome, since over months many adapters may be loaded and unloaded."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """The counters of one kind of request, cached because looking them up costs more than
    counting."""

    requests: BatchedCounter
    failed: BatchedCounter | None
    """None unless the router or an engine is at fault."""
    duration: BatchedHistogram
    decisions: BatchedCounter | None
    """None, like `tokens`, if the request was refused before a decision."""
    tokens: BatchedHistogram | None
    ttft: BatchedHistogram | None
    """None for errors: fast refusals would make the times of answers look better."""


class RequestCounts:
    """The series of requests. `known_models`: returns the models that engines list."""

    def __init__(
        self,
        families: Families,
        series: BatchedSeries,
        engines: EngineCounts,
        known_models: Callable[[], Container[str]],
    ) -> None:
        self._families = families
        self._series = series
        self._engines = engines
        self._known_models = known_models
        self._kinds: dict[tuple[object, ...], _Kind] = {}
        self._models: dict[tuple[str | None, str], BatchedCounter] = {}
        """By model and outcome."""
        self._prefill = series.histogram(families.prefill)
        self._handover = series.histogram(families.handover)
        self._estimated = series.counter(families.prompt_tokens, "estimated")
        self._measured = series.counter(families.prompt_tokens, "measured")
        self._abandoned = series.histogram(families.abandoned)
        for mode in Mode:  # from the start, so that the first late stream is an increase
            series.histogram(families.ttft, mode, "true")
        self._chunks = series.counter(families.chunks)
        self._bytes = series.counter(families.bytes)
        self._failed = series.counter(families.failed)

    def ended(self, record: RequestEnded) -> None:
        """Count a request that has ended."""
        kind = self._kind_of(record)
        kind.requests.value += 1
        if kind.failed is not None:
            kind.failed.value += 1
        trace_id = record.trace_id
        kind.duration.observe(record.ended - record.started, trace_id)
        if kind.decisions is not None:
            kind.decisions.value += 1
        if kind.tokens is not None:
            kind.tokens.observe(record.tokens)
        if kind.ttft is not None and record.first_byte is not None:
            kind.ttft.observe(record.first_byte - record.started, trace_id)
        if record.stream:
            self._streamed(record)
        if record.prefill_seconds is not None:
            self._prefill.observe(record.prefill_seconds, trace_id)
        if record.api_key is not None:
            self._count_by_key(record.api_key, record)
        if record.prompt_tokens and record.text_bytes:
            self._estimated.value += record.tokens
            self._measured.value += record.prompt_tokens
        of_model = self._models.get((record.model, record.outcome)) or self._model_counter(record)
        if of_model is not None:
            of_model.value += 1
        self._chunks.value += record.chunks
        self._bytes.value += record.bytes_out

    def _count_by_key(self, name: str, record: RequestEnded) -> None:
        self._series.counter(self._families.key_requests, name, record.outcome).value += 1
        self._series.counter(self._families.key_tokens, name).value += record.tokens

    def _model_counter(self, record: RequestEnded) -> BatchedCounter | None:
        """Create the counter for a request's model and outcome; None if the model must not become a
        label."""
        model, outcome = record.model, record.outcome
        if model is None or model not in self._known_models():  # clients can send any model name
            return None
        if len(self._models) >= MAX_MODEL_SERIES:
            return None
        counter = self._series.counter(self._families.of_models, model, outcome)
        self._models[model, outcome] = counter
        return counter

    def _streamed(self, record: RequestEnded) -> None:
        first, chunks = record.first_byte, record.chunks
        if record.outcome == "client_left" and first is None:
            self._abandoned.observe(record.ended - record.started, record.trace_id)
        if record.outcome != "ok" or first is None or record.decode is None:
            return
        if record.prefilled_at is not None and not record.fallbacks:
            self._handover.observe(first - record.prefilled_at, record.trace_id)
        # Not from the request's arrival on, because this engine did not cause waits for other
        # engines.
        gap = (record.ended - first) / (chunks - 1) if chunks > 1 else None
        self._engines.streamed(record.decode, first - record.asked_at, gap, record.trace_id)

    def _kind_of(self, record: RequestEnded) -> _Kind:
        mode, reason, stream = record.mode, record.reason, record.stream
        key = record.route, mode, record.status, record.outcome, reason, stream
        kind = self._kinds.get(key)
        if kind is None:
            families, name = self._families, mode or "none"
            status, of_stream = record.status or "none", "true" if stream else "false"
            kind = self._kinds[key] = _Kind(
                requests=self._series.counter(
                    families.requests, record.route, name, status, record.outcome
                ),
                failed=self._failed if record.has_failed else None,
                duration=self._series.histogram(families.duration, name),
                decisions=self._series.counter(families.decisions, name, reason) if mode else None,
                tokens=self._series.histogram(families.tokens, name) if mode else None,
                ttft=(
                    self._series.histogram(families.ttft, name, of_stream)
                    if 0 < record.status < 400
                    else None
                ),
            )
        return kind
