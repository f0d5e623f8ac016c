"""One request on its way through the router, from its head to its record.

`RequestRun` decides; `ServedRequest` is that run with sockets, and the sole owner of the request's
record, leases, plan and outcome. This module has the way in: from the head to the start of the
plan. `EngineRun` makes engine requests, `PlanRunner` takes the plan to its end. Nothing is awaited:
the run continues within the read callbacks of client and engines.
"""

import time
from typing import Final

from router.core.errors import BodyTooSlow, LimitReached, RouterError
from router.core.events import KeyRefused
from router.core.limits.api_keys import check_key
from router.core.request_facts import Facts
from router.core.routing.large_body import LARGE_BYTES, SMALL_BYTES, is_large
from router.core.wire import facts as facts_of
from router.core.wire.request_head import check_head, check_size, declared_size
from router.net.key_file import KeyFile
from router.net.limits.admission_gate import AdmissionGate
from router.net.request.plan_runner import PlanRunner

__all__ = ["ServedRequest"]

BYTES_PER_START: Final = 2048
"""For each so many bytes of body a request counts as one more start in a turn of the event loop.
Parsing 64 KiB takes up to 17 ms, so one or two such requests start per turn."""


class ServedRequest(PlanRunner):
    """A run that is the listener of its client's request."""

    __slots__ = ()

    # Called by the client's connection.

    def on_head(self) -> None:
        """Refuse a request whose head alone shows that it cannot be served."""
        head, network = self._request.head, self._network
        try:
            if network.api_keys is not None:
                self.record.api_key = check_key(network.api_keys.keys, head.fields)
            if head.is_accepted:
                return
            check_head(head.method, self._route.path, head.fields, self._max_bytes())
            network.byte_budget.check(declared_size(head.fields))
        except RouterError as error:
            self._finish(error)
        else:
            head.is_accepted = True

    def on_body_progress(self, size: int) -> None:
        """Refuse a body as soon as it exceeds the size limit."""
        try:
            self._hold(size)
        except RouterError as error:
            self._finish(error)

    def on_body_timeout(self) -> None:
        """Refuse a body that was not complete within the time-out."""
        seconds = self._network.limits.body_seconds
        self._finish(BodyTooSlow(f"The body did not arrive within {seconds:g} s."))

    def on_body_complete(self) -> None:
        """Start the request now, or in a later turn of the event loop if many arrived together."""
        size = self._request.size
        try:
            self._hold(size)
        except RouterError as error:
            self._finish(error)
        else:
            cost = 1 + size // BYTES_PER_START
            self._network.start_limiter.submit(self._client.loop, self._begin, cost)

    def on_write_paused(self) -> None:
        """Pause the leg: the client is not reading."""
        if self._leg is not None:
            self._leg.on_write_paused(time.monotonic())

    def on_write_resumed(self) -> None:
        """Resume the leg."""
        if self._leg is not None:
            self._leg.on_write_resumed()

    def on_disconnect(self) -> None:
        """Stop all work for the client."""
        self._end("client_left")

    # The way to the plan.

    def _begin(self) -> None:
        """Read the facts, and start the plan."""
        if self._is_over:  # the client left, or the router is shutting down
            return
        request = self._request
        try:
            if request.size > LARGE_BYTES:
                self._read_apart(request.take_pieces())
                return
            raw = request.take_body()
            if request.size > SMALL_BYTES and is_large(raw):
                self._read_apart([bytes(raw)])
                return
            kind = request.head.fields.get(b"content-type", b"")
            facts = facts_of.read(self._route, kind, raw, self._query)
        except Exception as error:  # noqa: BLE001 - `_finish` answers all of them
            self._finish(error)
        else:
            self._start(facts)

    def _start(self, facts: Facts) -> None:
        """Admit the request and start its plan."""
        if self._is_over:  # it ended while its body was being parsed
            return
        network, record = self._network, self.record
        try:
            record.model, record.stream, record.tokens = facts.model, facts.stream, facts.tokens
            record.text_bytes = facts.learnable_bytes
            if network.gateway is not None:
                head, transport = self._request.head, self._client.transport
                facts.destinations = network.gateway.destinations(head.fields, transport)
            # A gateway that chose the engines reads in the head which one has answered.
            if facts.stream and facts.destinations is None and network.timeouts.sse_keep_alive:
                network.idle_sweep.watch(self)
            now = time.monotonic()
            decision = network.scheduler.decide(facts, now)
            if network.api_keys is not None and self._ticket is None:
                self._count(facts, network.api_keys, now)
            if network.admission is not None and not self._enter(facts, network.admission):
                return
            self.decided(decision)
            action = self.start(facts, network.plans(facts, decision), now)
        except Exception as error:  # noqa: BLE001 - `_finish` answers all of them
            self._finish(error)
        else:
            self._perform(action)

    # Admission.

    def _count(self, facts: Facts, keys: KeyFile, now: float) -> None:
        """Count the request for its API key. Raises LimitReached if that exceeds a limit of the
        key."""
        name = self.record.api_key or ""
        usage = keys.usages.get(name)
        if usage is None:
            return
        try:
            usage.enter(facts.tokens, now, is_stream=facts.stream)
        except LimitReached as error:
            self._network.observe(KeyRefused(name, error.limit))
            raise
        self._usage = usage

    def _enter(self, facts: Facts, gate: AdmissionGate) -> bool:
        """Whether the request is admitted. If not, it waits in the queue, or QueueFull is
        raised."""
        if self._ticket is not None:  # it has already waited in the queue
            return True
        ticket = self._ticket = gate.ticket(facts, self._request.head.fields, self.record.api_key)
        self.place = ticket.place
        is_in = gate.enter(ticket, self)
        if not is_in:
            self.facts = facts
        return is_in

    def on_turn(self, waited: float) -> None:
        """Start the plan after `waited` seconds in the queue."""
        if self._is_over:
            return
        self.record.queue_seconds = waited
        assert self.facts is not None, "it waited with them"
        self._start(self.facts)  # the engines may have changed

    def on_refused(self, error: RouterError) -> None:
        """End the request: it waited too long, or was displaced by another."""
        self._finish(error)

    def _read_apart(self, pieces: list[bytes]) -> None:
        """Have the body parsed by another process."""
        kind = self._request.head.fields.get(b"content-type", b"")
        reading = self._network.body_parser.read(self._route, kind, pieces, self._query)
        self._await(reading, self._start)

    # The byte budget.

    def _max_bytes(self) -> int:
        return min(self._network.limits.body_bytes, self._route.max_body_bytes)

    def _hold(self, size: int) -> None:
        """Charge the body's bytes, `size` so far, to the byte budget. Raises a RouterError."""
        if size > self._route.max_body_bytes or size > self._network.limits.body_bytes:
            check_size(size, self._max_bytes())
        self._network.byte_budget.take(size - self._held)
        self._held = size
