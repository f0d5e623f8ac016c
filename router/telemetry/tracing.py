"""Traces of requests with OpenTelemetry, exported by OTLP over HTTP (the extra `tracing`).

Attributes follow OpenTelemetry's semantic conventions for HTTP and generative AI; those without a
convention begin with `pd_router.`. A thread exports spans from a bounded queue: a slow or missing
collector costs spans, never a request.
"""

import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from router import __version__
from router.core.events import RequestEnded
from router.core.urls import origin, split_rank
from router.core.values import Endpoint, Failure, Route, RouteKind

__all__ = ["RequestTrace", "Tracing"]

MAX_QUEUE: Final = 2048
"""Most queued spans, a few megabytes; when it is full the oldest are dropped."""

BATCH: Final = 128
"""Spans per export: encoding them holds the interpreter's lock for some milliseconds."""

DELAY_MS: Final = 1000
"""Longest time in milliseconds that a span is queued."""

EXPORT_SECONDS: Final = 3.0
"""Time-out in seconds of one export, including retries."""

CLOSE_SECONDS: Final = 3.0
"""Seconds for exporting all queued spans at the router's end; the rest is lost."""

MAX_TEXT: Final = 256
"""Longest attribute in characters that comes from clients or engines."""

OPERATIONS: Final[Mapping[RouteKind, str]] = MappingProxyType(
    {
        RouteKind.CHAT: "chat",
        RouteKind.COMPLETIONS: "text_completion",
        RouteKind.RESPONSES: "chat",
        RouteKind.MESSAGES: "chat",
        RouteKind.GENERATE: "text_completion",
    }
)
"""gen_ai.operation.name, by kind of route."""


class Tracing:
    """Creates traces, and exports a share of them to `endpoint`, the URL of a collector.

    If the client traces a request, its sampling decision is used.
    """

    def __init__(self, endpoint: str, share: float) -> None:
        """Starts a thread. Raises ImportError, whose message names the extra to install."""
        try:
            from opentelemetry import trace  # noqa: PLC0415 - an extra
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
                OTLPSpanExporter,
            )
            from opentelemetry.sdk import resources  # noqa: PLC0415
            from opentelemetry.sdk.trace import SpanLimits, TracerProvider  # noqa: PLC0415
            from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
            from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio  # noqa: PLC0415
            from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415
                TraceContextTextMapPropagator,
            )
        except ImportError as error:
            raise ImportError(
                f"tracing needs {error.name}: pip install 'pd-router[tracing]'"
            ) from None
        self._api: Any = trace
        self._propagator = TraceContextTextMapPropagator()
        self._exporter = OTLPSpanExporter(endpoint, timeout=EXPORT_SECONDS)
        own = resources.Resource({"service.name": "pd-router", "service.version": __version__})
        self._provider = TracerProvider(
            sampler=ParentBasedTraceIdRatio(share),
            # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES are merged last, so they take
            # precedence.
            resource=own.merge(resources.OTELResourceDetector().detect()),
            shutdown_on_exit=False,
            span_limits=SpanLimits(max_attribute_length=MAX_TEXT),
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(
                self._exporter,
                max_queue_size=MAX_QUEUE,
                schedule_delay_millis=DELAY_MS,
                max_export_batch_size=BATCH,
            )
        )
        self._tracer = self._provider.get_tracer("pd-router", __version__)

    def begin(
        self, route: Route, traceparent: bytes | None, tracestate: bytes | None
    ) -> "RequestTrace":
        """Start the trace of a request that has arrived."""
        given = (("traceparent", traceparent), ("tracestate", tracestate))
        carrier = {name: value.decode("latin-1") for name, value in given if value is not None}
        span = self._tracer.start_span(
            f"POST {route.path}",
            self._propagator.extract(carrier),
            self._api.SpanKind.SERVER,
            {"http.request.method": "POST", "http.route": route.path, "url.path": route.path},
        )
        return RequestTrace(self, route, span)

    def leg(self, parent: Any, endpoint: Endpoint, path: str) -> Any:
        """Start the span of an engine request."""
        place = origin(split_rank(endpoint.url)[0])
        attributes: dict[str, Any] = {
            "http.request.method": "POST",
            "url.path": path.partition("?")[0],
            "server.address": place.host,
            "server.port": place.port,
            "pd_router.endpoint": endpoint.url,
        }
        context = self._api.set_span_in_context(parent)
        return self._tracer.start_span(
            str(endpoint.role), context, self._api.SpanKind.CLIENT, attributes
        )

    def headers(self, span: Any) -> bytes:
        """Header lines that let another service continue a span's trace."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, self._api.set_span_in_context(span))
        return "".join(f"{name}: {value}\r\n" for name, value in carrier.items()).encode("latin-1")

    def exported_trace_id(self, span: Any) -> str | None:
        """The trace id of a span, in hexadecimal; None if the span is not sampled."""
        context = span.get_span_context()
        return self._api.format_trace_id(context.trace_id) if context.trace_flags.sampled else None

    def fail(self, span: Any, kind: str, text: str | None) -> None:
        """Mark a span as failed."""
        span.set_attribute("error.type", kind)
        span.set_status(self._api.StatusCode.ERROR, None if text is None else text[:MAX_TEXT])

    def close(self) -> None:
        """Export queued spans, as far as possible within CLOSE_SECONDS. Blocks."""
        limit = threading.Timer(CLOSE_SECONDS, self._exporter.shutdown)
        limit.start()
        self._provider.shutdown()
        limit.cancel()


class RequestTrace:
    """One request's trace."""

    def __init__(self, tracing: Tracing, route: Route, span: Any) -> None:
        self._tracing = tracing
        self._route = route
        self._span = span
        self._leg: Any = None
        """The span of the current leg."""

    @property
    def exported_trace_id(self) -> str | None:
        """The trace id, in hexadecimal; None if it is not sampled."""
        return self._tracing.exported_trace_id(self._span)

    def begin_leg(self, endpoint: Endpoint, path: str) -> None:
        """Start the span of a leg."""
        self._leg = self._tracing.leg(self._span, endpoint, path)

    def headers(self) -> bytes:
        """The trace context headers for the engine."""
        return self._tracing.headers(self._leg)

    def first_token(self) -> None:
        """Note that the client has been sent the first content of a stream."""
        self._span.add_event("first_token")

    def end_leg(self, status: int, failure: Failure | None) -> None:
        """The leg has ended; `status` is 0 if no answer began."""
        leg, self._leg = self._leg, None
        if leg is None:
            return
        if status:
            leg.set_attribute("http.response.status_code", status)
        if failure is not None:
            self._tracing.fail(leg, failure.kind, failure.cause or failure.message)
        elif status >= 400:
            self._tracing.fail(leg, str(status), None)
        leg.end()

    def end(self, record: RequestEnded) -> None:
        """End the request's span, and that of a leg that has not ended."""
        if self._leg is not None:
            self._leg.set_attribute("pd_router.outcome", record.outcome)
            self.end_leg(0, None)
        span = self._span
        operation = OPERATIONS.get(self._route.kind)
        if operation is not None and record.model is not None:
            span.update_name(f"{operation} {record.model[:MAX_TEXT]}")
        span.set_attributes(_attributes(record, operation))
        if record.has_failed or record.outcome == "aborted":
            kind = record.outcome if record.status < 400 else str(record.status)
            self._tracing.fail(span, kind, record.error)
        span.end()


def _attributes(record: RequestEnded, operation: str | None) -> dict[str, Any]:
    """The request's attributes that are known; OpenTelemetry does not accept None."""
    first = record.first_byte
    found = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": record.model,
        "gen_ai.request.stream": record.stream,
        "gen_ai.response.time_to_first_chunk": None if first is None else first - record.started,
        "http.response.status_code": record.status or None,
        "pd_router.request_id": record.request_id,
        "pd_router.outcome": record.outcome,
        "pd_router.mode": record.mode and str(record.mode),
        "pd_router.reason": record.reason or None,
        "pd_router.estimated_input_tokens": record.mode and record.tokens,
        "pd_router.continuation": record.continuation and record.continuation.outcome,
        "pd_router.fallbacks": [f"{f.leg}:{f.reason}" for f in record.fallbacks] or None,
    }
    return {name: value for name, value in found.items() if value is not None}
