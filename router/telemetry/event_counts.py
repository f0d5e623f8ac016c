"""What events and the fleet's totals count: requests, engines and their caches."""

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass

from router.core.events import Continuation, LegAnswered, LegFailed, RequestEnded, SpeedProbed
from router.core.fleet.fleet import Fleet
from router.core.judge.member import Member
from router.core.kv_events import EngineCache
from router.core.prefix.trust import PrefixCoverage
from router.core.values import DECODE, Endpoint, FailureKind, Mode
from router.telemetry import families
from router.telemetry.families import Family
from router.telemetry.series import Counter, Histogram, Series

__all__ = ["CacheCounts", "EngineCounts", "RequestCounts"]

PROBE_OUTCOMES = ("ok", "failed", "timeout")


class _Engine:
    """The series of one engine that requests count in."""

    __slots__ = ("answers", "gaps", "ttft")

    def __init__(self, ttft: Histogram, gaps: Histogram | None) -> None:
        self.answers: dict[int, Counter] = {}
        """By status."""
        self.ttft = ttft
        self.gaps = gaps
        """Times between tokens of a decode engine's streams."""


class EngineCounts:
    """Counts events by engine. Events of an engine may arrive after it was removed."""

    def __init__(self, series: Series) -> None:
        self._series = series
        self._engines: dict[Endpoint, _Engine] = {}

    def keep(self, current: Sequence[Endpoint]) -> set[Endpoint]:
        """Remove the series of all other engines, which are returned."""
        gone = self._series.engines.difference(current)
        for endpoint in gone:
            self._series.forget(endpoint)
            self._engines.pop(endpoint, None)
        return gone

    def add(self, current: Sequence[Endpoint]) -> None:
        """Add the series of these engines."""
        series = self._series
        for endpoint in current:
            if endpoint in self._engines:
                continue
            url, role = endpoint
            for kind in FailureKind:
                series.row(families.FAILURES, role, url, kind)
            for outcome in PROBE_OUTCOMES:
                series.row(families.PROBES, role, url, outcome)
            self._engines[endpoint] = _Engine(
                series.histogram(families.ENDPOINT_TTFT, role, url),
                series.histogram(families.GAP, role, url) if role is DECODE else None,
            )

    def probed(self, event: SpeedProbed) -> None:
        """Count a speed probe."""
        url, role = event.endpoint
        if event.outcome and event.endpoint in self._engines:
            self._series.row(families.PROBES, role, url, event.outcome)[0] += 1

    def failed(self, event: LegFailed) -> None:
        """Count a leg that the engine did not answer or did not complete."""
        url, role = event.endpoint
        if event.endpoint in self._engines:
            self._series.row(families.FAILURES, role, url, event.kind)[0] += 1

    def answered(self, event: LegAnswered) -> None:
        """Count an answer. That of a prefill or encode engine begins when all is computed."""
        endpoint, status = event.endpoint, event.status
        engine = self._engines.get(endpoint)
        if engine is None:
            return
        counter = engine.answers.get(status)
        if counter is None:
            url, role = endpoint
            counter = self._series.counter(families.ANSWERS, role, url, str(status))
            engine.answers[status] = counter
        counter.value += 1
        if endpoint.role is not DECODE and status < 400:
            engine.ttft.observe(event.seconds, event.trace_id)

    def streamed(
        self, endpoint: Endpoint, ttft: float, gap: float | None, trace_id: str | None
    ) -> None:
        """Count a complete stream of a decode engine. `ttft`: seconds to its first token; `gap`:
        mean seconds between its further reads, None if there were none."""
        engine = self._engines.get(endpoint)
        if engine is None:
            return
        engine.ttft.observe(ttft, trace_id)
        if gap is not None and engine.gaps is not None:
            engine.gaps.observe(gap, trace_id)


MAX_MODEL_SERIES = 4096
"""Most series by model and outcome, since over months many adapters may be loaded and unloaded."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """The counters of one kind of request, cached because looking them up costs more than
    counting."""

    requests: Counter
    failed: Counter | None
    """None unless the router or an engine is at fault."""
    duration: Histogram
    decisions: Counter | None
    """None, like `tokens`, if the request was refused before a decision."""
    tokens: Histogram | None
    ttft: Histogram | None
    """None for errors: fast refusals would make the times of answers look better."""


class RequestCounts:
    """The series of requests. `known_models`: returns the models that engines list."""

    def __init__(
        self,
        series: Series,
        engines: EngineCounts,
        known_models: Callable[[], Container[str]],
    ) -> None:
        self._series = series
        self._engines = engines
        self._known_models = known_models
        self._kinds: dict[tuple[object, ...], _Kind] = {}
        self._models: dict[tuple[str | None, str], Counter] = {}
        """By model and outcome."""
        self._prefill = series.histogram(families.PREFILL)
        self._handover = series.histogram(families.HANDOVER)
        self._estimated = series.counter(families.PROMPT_TOKENS, "estimated")
        self._measured = series.counter(families.PROMPT_TOKENS, "measured")
        self._abandoned = series.histogram(families.ABANDONED)
        for mode in Mode:  # from the start, so that the first late stream is an increase
            series.histogram(families.TTFT, mode, "true")
        self._chunks = series.counter(families.CHUNKS)
        self._bytes = series.counter(families.BYTES)
        self._failed = series.counter(families.FAILED)
        # From the start, so that the first continuation is an increase.
        for outcome in ("continued", "moved"):
            series.counter(families.CONTINUATIONS, outcome)
        self._carried = series.counter(families.CONTINUED_TOKENS, "carried")
        self._discarded = series.counter(families.CONTINUED_TOKENS, "discarded")
        self._pause = series.histogram(families.PAUSE)

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
        self._series.counter(families.KEY_REQUESTS, name, record.outcome).value += 1
        self._series.counter(families.KEY_TOKENS, name).value += record.tokens

    def _count_continuation(self, continuation: Continuation) -> None:
        outcome = continuation.outcome
        self._series.counter(families.CONTINUATIONS, outcome).value += 1
        self._carried.value += continuation.carried
        self._discarded.value += continuation.discarded
        if outcome in ("continued", "moved"):
            self._pause.observe(continuation.pause)

    def _model_counter(self, record: RequestEnded) -> Counter | None:
        """Create the counter for a request's model and outcome; None if the model must not become a
        label."""
        model, outcome = record.model, record.outcome
        if model is None or model not in self._known_models():  # clients can send any model name
            return None
        if len(self._models) >= MAX_MODEL_SERIES:
            return None
        counter = self._series.counter(families.OF_MODELS, model, outcome)
        self._models[model, outcome] = counter
        return counter

    def _streamed(self, record: RequestEnded) -> None:
        if record.continuation is not None:
            self._count_continuation(record.continuation)
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
            name = mode or "none"
            status, of_stream = str(record.status or "none"), "true" if stream else "false"
            kind = self._kinds[key] = _Kind(
                requests=self._series.counter(
                    families.REQUESTS, record.route, name, status, record.outcome
                ),
                failed=self._failed if record.has_failed else None,
                duration=self._series.histogram(families.DURATION, name),
                decisions=self._series.counter(families.DECISIONS, name, reason) if mode else None,
                tokens=self._series.histogram(families.INPUT_TOKENS, name) if mode else None,
                ttft=(
                    self._series.histogram(families.TTFT, name, of_stream)
                    if 0 < record.status < 400
                    else None
                ),
            )
        return kind


_Total = tuple[Family, str, int]
"""A family, the label beside role and endpoint (empty if there is none), and the count."""


class CacheCounts:
    """Counters of engines' prefix caches and KV-cache events, from totals that the fleet keeps.

    A fleet without events has no series of them, and an engine whose prefix cache was never counted
    has none of that.
    """

    def __init__(self, fleet: Fleet, series: Series) -> None:
        self._fleet = fleet
        self._series = series
        self._counted: dict[Endpoint, dict[tuple[Family, str], int]] = {}
        """The totals at the last call of `publish`."""
        self.publish()  # counters begin at zero

    def publish(self) -> None:
        """Count the increases since the last call."""
        for member in self._fleet:
            if member.prompts.events is not None:
                self._count_all(member, _of_events(member.prompts.events))
            if any(member.prompts.coverage.tokens.values()):
                self._count_all(member, _of_prompts(member.prompts.coverage))

    def forget(self, endpoint: Endpoint) -> None:
        """The engine has left."""
        self._counted.pop(endpoint, None)

    def _count_all(self, member: Member, totals: Iterable[_Total]) -> None:
        url, role = member.endpoint
        counted = self._counted.setdefault(member.endpoint, {})
        for family, kind, total in totals:
            before = counted.get((family, kind))
            if total != before:
                # A new engine at the same URL starts at zero.
                increase = total if before is None or total < before else total - before
                labels = (role, url, kind) if kind else (role, url)
                self._series.row(family, *labels)[0] += increase
                counted[family, kind] = total


def _of_prompts(coverage: PrefixCoverage) -> Iterable[_Total]:
    for known_by, tokens in coverage.tokens.items():
        yield families.KNOWN_TOKENS, known_by, tokens
    yield families.REGRET_TOKENS, "", coverage.regret


def _of_events(cache: EngineCache) -> Iterable[_Total]:
    counts = cache.counts
    yield families.KV_EVENTS, "", counts.events
    yield families.KV_EVENT_TROUBLES, "gap", counts.gaps
    yield families.KV_EVENT_TROUBLES, "replay", counts.replays
    yield families.KV_EVENT_TROUBLES, "loss", counts.losses
    yield families.CACHED_TOKENS, "predicted", cache.predicted
    yield families.CACHED_TOKENS, "measured", cache.measured
