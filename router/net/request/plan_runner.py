"""Runs a request's plan to its end: performs its steps, and has the single exit.

Whatever happens, `_end` is called, which releases all resources and reports the record.
"""

import asyncio
import logging
import time
from typing import Final

from router.core.errors import InternalError, QueueFull, RouterError, ShuttingDown
from router.core.limits.admission import Ticket
from router.core.plans.steps import AwaitKV, BackOff, Outcome, Send
from router.core.retry import SERVER_ERRORS
from router.core.routing.request_run import ENGINE_REQUESTS, Action
from router.core.values import Failure, Reply
from router.core.wire import headers as http
from router.core.wire.engine_error import engine_error, engine_error_frame
from router.core.wire.redact import redact
from router.net.request.engine_run import EngineRun
from router.net.request.network import KVReady

__all__ = ["PlanRunner"]

log = logging.getLogger(__name__)

EARLY_HEAD: Final = b"content-type: text/event-stream; charset=utf-8\r\n"
"""As vLLM's."""

KEEP_ALIVE: Final = b": keep-alive\n\n"
"""As vLLM's, with its --sse-keep-alive-interval."""


class PlanRunner(EngineRun):
    """Each run ends with exactly one response, unless the client has left, and with one record."""

    __slots__ = ()

    def abort(self) -> None:
        """End the request with an error, because the router is shutting down."""
        self._tell(ShuttingDown("The router is shutting down."))
        self._end("aborted")

    # The steps of the plan.

    def _perform(self, action: Action | None) -> None:
        """Perform the plan's actions until one has to be waited for or the plan ends."""
        try:
            while action is not None:
                if isinstance(action, ENGINE_REQUESTS):
                    self._ask()
                    return
                if isinstance(action, Send):
                    self._send(action.reply)
                    action = self.answer(None, time.monotonic())
                elif isinstance(action, BackOff):
                    self._await(asyncio.sleep(action.seconds), self._on_back_off_end)
                    return
                elif (kv_ready := self._network.kv_ready) is not None:
                    self._await_kv(action, kv_ready)
                    return
                else:  # no notifications: assume that the KV cache is ready
                    action = self.answer(True, time.monotonic())
        except Exception as error:  # noqa: BLE001 - `_finish` answers all of them
            self._finish(error)
        else:
            self._finish(None)

    def _await_kv(self, step: AwaitKV, kv_ready: KVReady) -> None:
        seconds = self._network.timeouts.kv_ready
        self._await(kv_ready.wait(step.transfer_id, step.count, seconds), self._on_kv_ready)

    def _on_kv_ready(self, is_ready: bool) -> None:
        self._perform(self.answer(is_ready, time.monotonic()))

    def _on_back_off_end(self, _: None) -> None:
        self._perform(self.answer(None, time.monotonic()))

    def _send(self, reply: Reply) -> None:
        client, record, response = self._client, self.record, self._client.response
        body = redact(reply.body)
        if reply.status >= 400:
            record.error = engine_error(self.step.endpoint.role, reply.status, body)
        if not response.is_started:
            lines = http.block(http.end_to_end(reply.headers, http.RESPONSE_ONLY))
            response.start(reply.status, self.response_headers(lines), len(body))
        elif reply.status >= 400:  # behind the head of a stream
            body = engine_error_frame(reply.status, body, self._route.kind)
        record.status = record.status or reply.status
        if reply.status == record.status:  # else the client had the head of an engine that failed
            record.first_byte = time.monotonic()
        response.write(body)
        client.end_response()

    def _settle(
        self, outcome: Outcome | None, failure: Failure | None, status: int, now: float
    ) -> None:
        if self._is_over:
            return
        endpoint = self.step.endpoint
        try:
            action = self.settle(outcome, failure, status, now)
        except Exception as error:  # noqa: BLE001 - `_finish` answers all of them
            self._finish(error)
            return
        if action is None:  # nearly always
            self._finish(None)
            return
        # A refused connection is not counted: the client did not wait for that engine.
        is_left = status in SERVER_ERRORS if failure is None else not failure.is_unseen
        if is_left and self._network.names_engines and not isinstance(action, Send):
            self._left += (endpoint.url.encode(),)
        self._perform(action)

    # Called by the sweep.

    def check_idle(self, now: float) -> None:
        """Send the client of a stream a comment when it has been sent nothing for a while and has
        no content yet, because proxies and agents give up on silence.

        If the client has no head, an early one goes first: 200 before any engine's status is known.
        """
        if self._is_over or self.record.first_byte is not None:  # it may have ended in this sweep
            self._network.idle_sweep.forget(self)
            return
        if self._silent_since is None:
            self._silent_since = now
        seconds = self._network.timeouts.sse_keep_alive
        client, response = self._client, self._client.response
        if not seconds or now - self._silent_since < seconds or client.write_paused:
            return
        self._silent_since = now
        if not response.is_started:
            block = b"%bx-request-id: %b\r\n" % (EARLY_HEAD, self.record.request_id.encode())
            response.start(200, block + self._limit_lines(), None, self._route.kind)
        response.is_corked = False  # as the answer of an engine that failed may have left it
        response.write(KEEP_ALIVE)

    # The end.

    def _finish(self, error: Exception | None) -> None:
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
        self._tell(error)
        self._end(record.failure)

    def _end(self, outcome: str) -> None:
        """The single exit: releases all resources and reports the record."""
        if self._is_over:
            return
        self._is_over = True
        self._request.listener = None
        if self.record.stream:
            self._network.idle_sweep.forget(self)
        if self._leg is not None or self._waiting is not None:
            self._stop_leg()
        self.close()
        if self._held:
            if self.facts is None:  # the body is still in the request
                self._request.take_pieces()
            self._drop_body()
        if self._kept:
            self._kept_for_plan = 0
            self._drop_answer()
        self._network.active.discard(self)
        record = self.record
        record.outcome = outcome
        record.asked_at = self.asked_at
        record.ended = time.monotonic()
        self._network.observe(record)
        if self._ticket is not None:
            self._leave(self._ticket, record.answer_tokens)
        if self._usage is not None:
            self._usage.leave(record.answer_tokens, record.ended, is_stream=record.stream)

    def _leave(self, ticket: Ticket, answer_tokens: int) -> None:
        self._ticket = None
        if self._network.admission is not None:
            self._network.admission.leave(ticket, answer_tokens)

    def _stop_leg(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        leg, self._leg = self._leg, None
        if leg is not None:
            leg.close(time.monotonic())

    def _tell(self, error: RouterError) -> None:
        """Send an error to the client, if it is still connected, and record it."""
        client, record = self._client, self.record
        if client.active is self._request:
            record.status = record.status or error.status
            record.error = record.error or error.message
            block = b"x-request-id: %b\r\n" % record.request_id.encode()
            if not isinstance(error, QueueFull):  # QueueFull says nothing of the key's limits
                block += self._limit_lines()
            last = b"" if self._leg is None else self._leg.last_events()
            client.fail(self._request, error, block, request_id=record.request_id, last=last)
