"""One request on its way through the router, from its head to its record.

`RequestRun` decides what to do next; `ServedRequest` does it and has the one exit, `_end`. Nothing
is awaited: the run goes on within the read callbacks of client and engines.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, cast

from router.core.errors import (
    BodyTooSlow,
    EngineTimedOut,
    InternalError,
    LimitReached,
    NotFound,
    Overloaded,
    RouterError,
    ShuttingDown,
)
from router.core.events import DeadlineRefused, KeyRefused, ModelChosen, RequestEnded
from router.core.limits.api_keys import check_key
from router.core.plans.steps import AwaitKV, AwaitMove, BackOff, Outcome, Send
from router.core.request_facts import Facts, session_keys
from router.core.retry import SERVER_ERRORS
from router.core.routing import deadline
from router.core.routing.large_body import LARGE_BYTES, SMALL_BYTES, is_large
from router.core.routing.request_run import ENGINE_REQUESTS, Action, RequestRun
from router.core.values import Decision, Failure, Route
from router.core.wire import facts as facts_of
from router.core.wire import headers as http
from router.core.wire.facts import check_head, check_size, declared_size
from router.net.client.client_connection import ClientConnection
from router.net.client.client_request import ClientRequest
from router.net.limits.admission_gate import AdmissionGate
from router.net.request.charges import Charges
from router.net.request.content_coding import check_coding, decode
from router.net.request.downstream import Downstream
from router.net.request.network import KVReady, Network, RequestTrace
from router.net.request.upstream import Upstream
from router.net.watched_files import KeyFile

__all__ = ["ServedRequest"]

log = logging.getLogger(__name__)

SESSION_TOKEN: Final = b"x-session-token"
"""As a session header: llm-d's, whose value clients take from the response before."""

BYTES_PER_START: Final = 2048
"""For each so many bytes of body a request counts as one more start in a turn of the event loop.
Parsing 64 KiB takes up to 17 ms, so one or two such requests start per turn."""


class ServedRequest:
    """It ends with exactly one response, unless the client has left, and with one record."""

    __slots__ = (
        "_charges",
        "_client",
        "_downstream",
        "_is_over",
        "_network",
        "_query",
        "_request",
        "_route",
        "_silent_since",
        "_task",
        "_timer",
        "_upstream",
        "record",
        "run",
        "trace",
    )

    def __init__(
        self,
        network: Network,
        client: ClientConnection,
        request: ClientRequest,
        route: Route,
        query: bytes,
    ) -> None:
        rng, fields = network.rng, request.head.fields
        given = fields.get(b"x-request-id")
        request_id = None if given is None else http.clean_request_id(given)
        if request_id:
            # Clients may use an id for two requests at a time, which engines cannot handle
            # (vllm#10583).
            engine_id = b"%b-%08x" % (request_id.encode(), rng.getrandbits(32))
        else:  # unique, not secret: uuid4 makes a system call each time
            request_id = rng.getrandbits(128).to_bytes(16).hex()
            engine_id = request_id.encode()
        self.trace: RequestTrace | None = None
        """None unless the router traces."""
        if network.tracing is not None:  # first, because it is the longer of the two
            self.trace = network.tracing.begin(
                route, fields.get(b"traceparent"), fields.get(b"tracestate")
            )
        self.record = record = RequestEnded(request_id, route.path, time.monotonic())
        if self.trace is not None:
            record.trace_id = self.trace.exported_trace_id
        self._network = network
        self._client = client
        self._request = request
        self._route = route
        self._query = query
        self._charges = Charges(network.byte_budget, network.answer_budget)
        self.run = RequestRun(network.scheduler, network.observe, record, rng, network.sample)
        self._downstream = Downstream(network, client, request, route.kind, record)
        self._upstream = Upstream(
            network, self.run, self._downstream, self._charges, self.trace, engine_id, self
        )
        self._task: asyncio.Task[Any] | None = None
        """What is waited for: the facts of a large body, a back-off, or a KV cache."""
        self._timer: asyncio.TimerHandle | None = None
        """Ends the request at its deadline; None without one."""
        self._silent_since: float | None = None
        """When the idle sweep first saw the request, or last sent its client a comment."""
        self._is_over = False

    # The way in. Called by the client's connection.

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
            head.coding = http.content_coding(head.headers)
            check_coding(head.coding)
        except RouterError as error:
            self._finish(error)
        else:
            head.is_accepted = True

    def on_body_progress(self, size: int) -> None:
        """Refuse a body as soon as it exceeds the size limit."""
        self._holds(size)

    def on_body_timeout(self) -> None:
        """Refuse a body that was not complete within the time-out."""
        seconds = self._network.limits.body_seconds
        self._finish(BodyTooSlow(f"The body did not arrive within {seconds:g} s."))

    def on_body_complete(self) -> None:
        """Start the request now, or in a later turn of the event loop if many arrived together."""
        size = self._request.size
        if self._holds(size):
            cost = 1 + size // BYTES_PER_START
            self._network.start_limiter.submit(self._client.loop, self._begin, cost)

    def on_write_paused(self) -> None:
        """The client is not reading."""
        self._upstream.pause()

    def on_write_resumed(self) -> None:
        """The client is reading again."""
        self._upstream.resume()

    def on_disconnect(self) -> None:
        """Stop all work for the client."""
        self._end("client_left")

    def _holds(self, size: int) -> bool:
        """Charge the body, of which `size` bytes have arrived. Returns False if it was refused."""
        try:
            if size > self._route.max_body_bytes or size > self._network.limits.body_bytes:
                check_size(size, self._max_bytes())
            self._charges.hold_body(size)
        except RouterError as error:
            self._finish(error)
            return False
        return True

    def _max_bytes(self) -> int:
        return min(self._network.limits.body_bytes, self._route.max_body_bytes)

    def _begin(self) -> None:
        """Read the body."""
        if self._is_over:  # the client left, or the router is shutting down
            return
        request = self._request
        if request.head.coding:
            pieces = request.take_pieces()
            decoding = decode(request.head.coding, pieces, self._max_bytes(), self._charges)
            self._await(decoding, self._on_decoded)
        elif request.size > LARGE_BYTES:
            self._read_apart(request.take_pieces())
        else:
            self._read(request.take_body())

    def _on_decoded(self, pieces: list[bytes]) -> None:
        if self._is_over:
            return
        if self._charges.body > LARGE_BYTES:
            self._read_apart(pieces)
        else:
            self._read(b"".join(pieces))

    def _read(self, raw: bytes | memoryview) -> None:
        """Read the facts."""
        try:
            if len(raw) > SMALL_BYTES and is_large(raw):
                self._read_apart([bytes(raw)])
                return
            kind = self._request.head.fields.get(b"content-type", b"")
            facts = facts_of.read(self._route, kind, raw, self._query, self._network.image_rules)
        except Exception as error:  # noqa: BLE001 - `_finish` answers all of them
            self._finish(error)
        else:
            self._start(facts)

    def _read_apart(self, pieces: list[bytes]) -> None:
        """Have the body parsed by another process."""
        kind = self._request.head.fields.get(b"content-type", b"")
        reading = self._network.body_parser.read(self._route, kind, pieces, self._query)
        self._await(reading, self._start)

    # Admission.

    def _start(self, facts: Facts, *, is_last: bool = False) -> None:
        """Start the plan, unless the request has to wait in the queue or for the engines' models.
        Called again on its turn, because the engines may have changed; `is_last`: with the models
        that they have now."""
        if self._is_over:  # it ended while its body was being parsed
            return
        network, record, run = self._network, self.record, self.run
        try:
            self._read_head(facts, network)
            record.model, record.stream, record.tokens = facts.model, facts.stream, facts.tokens
            record.text_bytes = facts.learnable_bytes
            record.media_tokens = facts.media_tokens
            # A gateway that chose the engines reads in the head which one has answered.
            if facts.stream and facts.destinations is None and network.timeouts.sse_keep_alive:
                network.idle_sweep.watch(self)
            now = time.monotonic()
            decision = network.scheduler.decide(facts, now)
            if network.has_deadlines:
                self._check_deadlines(facts, decision, now)
            if record.queue_seconds is None:  # it has not waited
                if network.api_keys is not None:
                    self._count(facts, network.api_keys, now)
                if network.admission is not None and not self._enter(facts, network.admission):
                    return
            run.decided(decision)
            plan = network.plans(facts, decision)
            plan = network.scheduler.encoding(plan, facts, now) if facts.media_tokens else plan
            action = run.start(facts, plan, now, network.plans)
        except Exception as error:  # noqa: BLE001 - `_finish` answers all of them
            find = network.find_models
            if isinstance(error, NotFound) and find is not None and not is_last:
                self._await(find(), lambda _: self._start(facts, is_last=True))
            else:
                self._finish(error)
        else:
            self._perform(action)

    def _read_head(self, facts: Facts, network: Network) -> None:
        """Add the facts that depend on the request's head: the model that an alias stands for, the
        session, and the engines that a gateway has chosen."""
        fields, names, alias = self._request.head.fields, network.model_names, facts.model
        if names is not None and alias in names.aliases:
            model = names.model(alias, fields)
            facts_of.set_model(facts, model)
            network.observe(ModelChosen(alias, model))
        if network.session_header is not None:
            facts.session = network.session_of(fields)
            if network.session_header == SESSION_TOKEN:
                self._issue_token(facts, fields.get(SESSION_TOKEN))
        if network.gateway is not None:
            facts.destinations = network.gateway.destinations(fields, self._client.transport)

    def _issue_token(self, facts: Facts, given: bytes | None) -> None:
        """Name the session in the response, for clients that send the name back. Without one it
        begins with this request."""
        token, response = given or self.record.request_id.encode(), self._client.response
        facts.session = session_keys(token)
        if SESSION_TOKEN not in response.extra:  # it may have waited in the queue
            response.extra += b"%b: %b\r\n" % (SESSION_TOKEN, token)

    def _check_deadlines(self, facts: Facts, decision: Decision, now: float) -> None:
        """Start the timer for the whole answer, and raise Overloaded if the first token is expected
        too late."""
        fields, waited = self._request.head.fields, now - self.record.started
        seconds = deadline.seconds_of(fields, deadline.WHOLE)
        if seconds is not None and self._timer is None:
            self._timer = self._client.loop.call_later(
                max(0.0, seconds - waited), self._on_deadline, seconds
            )
        limit = deadline.seconds_of(fields, deadline.FIRST_TOKEN)
        if limit is not None:
            gate = self._network.admission
            if gate is not None and self.record.queue_seconds is None:
                waited += gate.admission.longest_wait(now)
            try:
                deadline.check(self._network.scheduler, facts, decision, limit, waited, now)
            except Overloaded:
                self._network.observe(DeadlineRefused())
                raise

    def _on_deadline(self, seconds: float) -> None:
        name = deadline.WHOLE.decode()
        self._finish(EngineTimedOut(f"The answer took longer than its {name} of {seconds:g} s."))

    def _count(self, facts: Facts, keys: KeyFile, now: float) -> None:
        """Count the request for its API key. Raises LimitReached."""
        name = self.record.api_key or ""
        usage = keys.usages.get(name)
        if usage is None:
            return
        try:
            self._charges.count(usage, facts, now)
        except LimitReached as error:
            self._network.observe(KeyRefused(name, error.limit))
            raise

    def _enter(self, facts: Facts, gate: AdmissionGate) -> bool:
        """Whether the request is admitted. If not, it waits in the queue, or QueueFull is
        raised."""
        ticket = gate.ticket(facts, self._request.head.fields, self.record.api_key)
        self.run.place = ticket.place
        is_in = self._charges.enter(gate, ticket, self)
        if not is_in:
            self.run.facts = facts
        return is_in

    def on_turn(self, waited: float) -> None:
        """Start the plan after `waited` seconds in the queue."""
        if self._is_over:
            return
        self.record.queue_seconds = waited
        assert self.run.facts is not None, "it waited with them"
        self._start(self.run.facts)

    def on_refused(self, error: RouterError) -> None:
        """End the request: it waited too long, or was displaced by another."""
        self._finish(error)

    # The plan.

    def _perform(self, action: Action | None) -> None:
        """Perform the plan's actions until one has to be waited for or the plan ends."""
        run = self.run
        try:
            while action is not None:
                if isinstance(action, ENGINE_REQUESTS):
                    self._upstream.ask()
                    return
                if isinstance(action, Send):
                    self._downstream.send_reply(action.reply, run.step.endpoint)
                    action = run.answer(None, time.monotonic())
                elif isinstance(action, BackOff):
                    self._await(asyncio.sleep(action.seconds), self._answer)
                    return
                elif isinstance(action, AwaitMove):
                    self._network.move_queue.enter(self, is_cut=True)
                    return
                elif (kv_ready := self._network.kv_ready) is not None:
                    self._await_kv(action, kv_ready)
                    return
                else:  # no notifications: assume that the KV cache is ready
                    action = run.answer(True, time.monotonic())
        except Exception as error:  # noqa: BLE001 - `_finish` answers all of them
            self._finish(error)
        else:
            self._finish(None)

    def _await_kv(self, step: AwaitKV, kv_ready: KVReady) -> None:
        seconds = self._network.timeouts.kv_ready
        self._await(kv_ready.wait(step.transfer_id, step.count, seconds), self._answer)

    def _answer(self, answer: bool | None) -> None:
        self._perform(self.run.answer(answer, time.monotonic()))

    def on_outcome(
        self, outcome: Outcome | None, failure: Failure | None, status: int, now: float
    ) -> None:
        """Pass the outcome of an engine request to the plan, and go on. Called by `Upstream`."""
        if self._is_over:
            return
        run, endpoint = self.run, self.run.step.endpoint
        try:
            action = run.settle(outcome, failure, status, now)
        except Exception as error:  # noqa: BLE001 - `_finish` answers all of them
            self._finish(error)
            return
        if action is None:  # nearly always
            self._finish(None)
            return
        # A refused connection is not counted: the client did not wait for that engine.
        is_left = status in SERVER_ERRORS if failure is None else not failure.is_unseen
        if is_left and self._network.names_engines and not isinstance(action, Send):
            self._downstream.left += (endpoint.url.encode(),)
        self._perform(action)

    @property
    def prompt_tokens(self) -> int:
        """Estimated tokens of its prompt."""
        return 0 if self.run.facts is None else self.run.facts.tokens

    def on_move(self) -> None:
        """Go on with another engine, now or in a later turn of the event loop."""
        self._network.start_limiter.submit(self._client.loop, self._move)

    def _move(self) -> None:
        if self._is_over or self._task is not None:  # it waits for room
            return
        try:
            if self.run.awaits_move:
                self._answer(None)
            elif not self._upstream.leave():
                self._network.move_queue.leave(self)
        except Exception as error:  # noqa: BLE001 - `_finish` answers all of them
            self._finish(error)

    def _await(self, work: Coroutine[Any, Any, Any], then: Callable[[Any], None]) -> None:
        """Run a coroutine and call `then` with its result. It is cancelled when the request ends,
        but a result that is already there is delivered even then."""
        task = self._client.loop.create_task(work)
        task.add_done_callback(partial(self._on_awaited, then))
        self._task = task

    def _on_awaited(self, then: Callable[[Any], None], task: "asyncio.Task[Any]") -> None:
        self._task = None
        if task.cancelled():
            return
        failure = task.exception()
        if failure is not None:
            self._finish(cast("Exception", failure))
            return
        try:
            then(task.result())
        except Exception as error:  # noqa: BLE001 - `_finish` answers all of them
            self._finish(error)

    # Called by the sweep.

    def check_idle(self, now: float) -> None:
        """Send the client of a stream a comment when it has been sent nothing for a while and has
        no content yet."""
        if self._is_over or self.record.first_byte is not None:  # it may have ended in this sweep
            self._network.idle_sweep.forget(self)
            return
        if self._silent_since is None:
            self._silent_since = now
        seconds = self._network.timeouts.sse_keep_alive
        if seconds and now - self._silent_since >= seconds and not self._client.write_paused:
            self._silent_since = now
            self._downstream.keep_alive()

    # The end.

    def abort(self) -> None:
        """End the request with an error, because the router is shutting down."""
        self._downstream.fail(ShuttingDown("The router is shutting down."))
        self._end("aborted")

    def on_error(self, error: Exception) -> None:
        """The router has failed. Called by `Upstream`."""
        self._finish(error)

    def _finish(self, error: Exception | None) -> None:
        """End the request if it has not ended. `error`: what to answer, or None if it has been
        answered."""
        if self._is_over:
            return
        record = self.record
        if error is None:
            is_good = record.error is None and record.status < 400
            self._end("ok" if is_good else record.failure)
            return
        if not isinstance(error, RouterError):
            log.error("request %s failed inside the router", record.request_id, exc_info=error)
            error = InternalError(f"The router failed: {type(error).__name__}.")
        self._downstream.fail(error)
        self._end(record.failure)

    def _end(self, outcome: str) -> None:
        """The single exit: releases all resources and reports the record."""
        if self._is_over:
            return
        self._is_over = True
        request, network, record, run = self._request, self._network, self.record, self.run
        request.listener = None
        if record.stream:
            network.idle_sweep.forget(self)
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._timer is not None:
            self._timer.cancel()
        self._upstream.close()
        run.close()
        if run.journal is not None:
            network.move_queue.leave(self)
        if self._charges.body and run.facts is None:  # the body is still in the request
            request.take_pieces()
        network.active.discard(self)
        record.outcome = outcome
        record.asked_at = run.asked_at
        record.ended = now = time.monotonic()
        self._charges.release(record, now)
        network.observe(record)
        if self.trace is not None:
            self.trace.end(record)
