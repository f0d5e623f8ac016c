"""The client side of the router: what requests share, and their limits."""

import asyncio
from collections.abc import Callable, Sequence

from router.core.events import Event
from router.core.fleet.fleet import Fleet
from router.core.membership.entry import Entry
from router.core.values import Endpoint
from router.net.engine.pool import EnginePool
from router.net.limits.read_limiter import READ_PER_REFILL, ReadLimiter
from router.net.limits.start_limiter import StartLimiter
from router.net.limits.timers import IdleTimeoutSweep
from router.net.processes.body_parser import BodyParser
from router.net.processes.shared_state import WorkerContext
from router.net.request.network import Network
from router.settings import Settings
from router.telemetry.metrics import Held, Metrics
from router.web.client_parts import (
    admission_gate,
    answer_budget_of,
    byte_budget_of,
    endpoint_picker,
    gateway_of,
    key_file_of,
    key_rows_of,
    kv_ready_socket,
    limits_of,
    prefill_from,
    timeouts_of,
    tracing_of,
)
from router.web.plan_choice import PlanChoice
from router.web.routing_parts import scheduler_of

__all__ = ["ClientSide"]

STARTS_PER_TURN = 32
"""Requests that start at once between two refills (10 ms); beyond that, the same number in each
turn of the event loop. Each takes 35 us, or 60 us with a new connection to an engine."""


class ClientSide:
    """`network` is shared by all requests and uses the engines' `pools`; `observe` receives its
    events. `on_starts_late` is called while requests wait for long turns of the event loop. Limits
    are counted in `context`, which several processes share."""

    def __init__(
        self,
        settings: Settings,
        fleet: Fleet,
        pools: dict[Endpoint, EnginePool],
        metrics: Metrics,
        observe: Callable[[Event], None],
        on_starts_late: Callable[[], None],
        context: WorkerContext | None = None,
    ) -> None:
        self.context = context
        self.limits = limits_of(settings)
        self.start_limiter = StartLimiter(STARTS_PER_TURN, on_starts_late)
        self.read_limiter = ReadLimiter(READ_PER_REFILL)
        self.idle_sweep = IdleTimeoutSweep(timeouts_of(settings).shortest)
        self.kv_ready = kv_ready_socket(settings)
        self.plans = PlanChoice(settings, notifies=self.kv_ready is not None)
        self.body_parser = BodyParser(
            prefill_from(settings), wants_ids=fleet.cache_events is not None
        )
        self._tracing = tracing_of(settings)
        self._gateway = gateway_of(settings)
        self.network = Network(
            read_limiter=self.read_limiter,
            api_keys=key_file_of(
                settings.api_key_file,
                rows=key_rows_of(context),
                on_limits=metrics.show_key_limits,
            ),
            admission=admission_gate(settings, fleet, self.start_limiter, metrics, context),
            byte_budget=byte_budget_of(settings),
            answer_budget=answer_budget_of(settings),
            body_parser=self.body_parser,
            scheduler=scheduler_of(settings, fleet),
            plans=self.plans.plan,
            pools=pools,
            idle_sweep=self.idle_sweep,
            start_limiter=self.start_limiter,
            limits=self.limits,
            timeouts=timeouts_of(settings),
            observe=observe,
            sample=settings.decision_log_sample,
            names_engines=settings.engine_header == "on",
            engine_api_key=settings.engine_api_key,
            kv_ready=self.kv_ready,
            tracing=self._tracing,
            gateway=self._gateway,
        )
        metrics.watch_held(self._held)
        self.picker = endpoint_picker(settings, self.network)
        """The endpoint picker for Envoy; None if it is off."""

    def follow(self, entries: Sequence[Entry]) -> None:
        """Set the engines."""
        self.plans.follow(entries)
        if self._gateway is not None:
            self._gateway.follow(entry.endpoint for entry in entries)

    def _held(self) -> Held:
        network = self.network
        requests = 0 if network.admission is None else network.admission.admission.in_flight
        return Held(requests, network.byte_budget.held, network.answer_budget.held)

    def refill(self) -> None:
        """Refill the start limiter and the read limiters."""
        self.start_limiter.refill()
        self.read_limiter.refill()

    def start(self) -> None:
        """Start to listen for LMCache's notifications."""
        if self.kv_ready is not None:
            self.kv_ready.start()

    async def close(self) -> None:
        """Stop everything. Traces that have not been exported are exported first."""
        await self.body_parser.close()
        if self.network.admission is not None:
            self.network.admission.close()
        self.idle_sweep.close()
        if self.kv_ready is not None:
            self.kv_ready.close()
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close)
