"""A served request with a trace. It is a class of its own so that tracing costs nothing where it is
off."""

from typing import Final

from router.core.plans.steps import Outcome
from router.core.values import Failure, Route
from router.net.client.client_connection import ClientConnection
from router.net.client.client_request import ClientRequest
from router.net.engine.pool import EnginePool
from router.net.request.network import Network, Tracing
from router.net.request.served_request import ServedRequest

__all__ = ["TracedRequest"]

TRACE_CONTEXT: Final = frozenset({b"traceparent", b"tracestate"})
"""W3C trace context headers, which the router replaces with its own."""


class TracedRequest(ServedRequest):
    """Each engine request is a leg of the trace; a replay on another connection belongs to the same
    leg."""

    __slots__ = ("_trace",)

    def __init__(
        self,
        network: Network,
        client: ClientConnection,
        request: ClientRequest,
        route: Route,
        query: bytes,
        tracing: Tracing,
    ) -> None:
        fields = request.head.fields
        self._trace = tracing.begin(route, fields.get(b"traceparent"), fields.get(b"tracestate"))
        super().__init__(network, client, request, route, query)
        self.record.trace_id = self._trace.exported_trace_id

    def on_first_token(self) -> None:
        """Note the first token in the trace."""
        self._trace.first_token()
        super().on_first_token()

    def _ask(self) -> None:
        step = self.step
        self._trace.begin_leg(step.endpoint, step.path)
        super()._ask()

    def _settle(
        self, outcome: Outcome | None, failure: Failure | None, status: int, now: float
    ) -> None:
        self._trace.end_leg(status, failure)
        super()._settle(outcome, failure, status, now)

    def _end(self, outcome: str) -> None:
        if not self._is_over:
            super()._end(outcome)
            self._trace.end(self.record)

    def _head(self, pool: EnginePool, path: str, length: int) -> bytes:
        head = super()._head(pool, path, length)
        return head.removesuffix(b"\r\n") + self._trace.headers() + b"\r\n"

    def _not_for_engines(self) -> frozenset[bytes]:
        return super()._not_for_engines() | TRACE_CONTEXT
