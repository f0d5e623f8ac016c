"""A receiver of OTLP over HTTP, as a collector is one: it takes spans apart and keeps them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

__all__ = ["Collector", "Span", "collector"]


@dataclass
class Span:
    """A span that came."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, Any]
    events: list[str]
    is_error: bool
    message: str
    state: str
    seconds: float
    resource: dict[str, Any]


@dataclass
class Collector:
    """Received spans. It sends no answer while `is_stuck`."""

    url: str = ""
    spans: list[Span] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    is_stuck: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)

    def take(self, body: bytes) -> None:
        """An export request."""
        message = ExportTraceServiceRequest.FromString(body)
        for group in message.resource_spans:
            resource = _attributes(group.resource.attributes)
            for scope in group.scope_spans:
                self.spans += [_span(each, resource) for each in scope.spans]

    def named(self, name: str) -> Span:
        """The only span of a name."""
        [found] = [span for span in self.spans if span.name == name]
        return found


def _span(span: Any, resource: dict[str, Any]) -> Span:
    return Span(
        name=span.name,
        kind=type(span).SpanKind.Name(span.kind),
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        attributes=_attributes(span.attributes),
        events=[event.name for event in span.events],
        is_error=span.status.code == 2,
        message=span.status.message,
        state=span.trace_state,
        seconds=(span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
        resource=resource,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    found = getattr(value, kind)
    return [_value(each) for each in found.values] if kind == "array_value" else found


@contextmanager
def collector() -> Iterator[Collector]:
    """One that listens, in threads of its own."""
    found = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if found.is_stuck.is_set():
                found.release.wait()
            found.paths.append(self.path)
            found.take(body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Send nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield found
    finally:
        found.release.set()
        server.shutdown()
        server.server_close()
        thread.join()
