"""One request that Envoy sends: which engines it should use, and what is learned from the answer.

Decisions, leases and record are those of any request (`RequestRun`); only the data are moved by
another program.
"""

from collections.abc import Callable
from typing import Final

from router.core.errors import NoEngine
from router.core.events import Event, FellBack, LegAnswered, LegDone
from router.core.fleet.leg_timer import LegTimer
from router.core.plans.steps import Lease, Plan, Release, Stream
from router.core.request_facts import Facts
from router.core.routing.request_run import RequestRun
from router.core.routing.schedule import Scheduler
from router.core.urls import split_rank
from router.core.values import DECODE, PREFILL, REMOTE, Decision, Endpoint, Failure
from router.core.wire.api_errors import ABORT, DROPPED, engine_error, failed_stream, status_of
from router.core.wire.sse import (
    EventKind,
    EventSplitter,
    data_events,
    data_of,
    error_in,
    event_kind,
    events,
)
from router.core.wire.usage import TAIL_BYTES, generated_tokens

__all__ = ["EndpointPick", "pick"]

ALTERNATIVES: Final = 2
"""Further decode engines on which Envoy may retry. With the first one that makes as many attempts
as the router itself makes."""


class EndpointPick:
    """Call `choose` first; then `on_head`, `on_body` and `on_end` as Envoy reports them; `end` in
    any case."""

    __slots__ = (
        "_error",
        "_events",
        "_has_failed",
        "_is_abort",
        "_is_stream",
        "_is_watched",
        "_observe",
        "_run",
        "_scheduler",
        "_splitter",
        "_tail",
        "_timer",
        "is_over",
        "record",
    )

    def __init__(
        self,
        run: RequestRun,
        scheduler: Scheduler,
        observe: Callable[[Event], None],
        *,
        is_watched: bool,
    ) -> None:
        """`is_watched`: Envoy streams the answer's body through the router, so that speeds can be
        measured."""
        self.record = run.record
        self._run = run
        self._scheduler = scheduler
        self._observe = observe
        self._is_watched = is_watched
        self._is_stream = False
        self._timer: LegTimer | None = None
        self._splitter = EventSplitter()
        """Splits a stream into events."""
        self._error = b""
        """The stream's last error event."""
        self._is_abort = False
        """Whether a unary answer says that the engine aborted the request."""
        self._events = 0
        """Events from the first one with content on."""
        self._has_failed = False
        """Whether a failure of the engine has been recorded."""
        self._tail = b""
        self.is_over = False
        """Whether the end of the answer was seen."""

    def choose(self, facts: Facts, now: float) -> None:
        """Decide the mode, and lease the engines. Raises a RouterError."""
        record = self.record
        record.model, record.stream, record.tokens = facts.model, facts.stream, facts.tokens
        record.text_bytes = facts.learnable_bytes
        record.media_tokens = facts.media_tokens
        decision = self._scheduler.decide(facts, now)
        self._run.decided(decision)
        self._run.start(facts, pick(facts, decision), now)
        self._is_stream = facts.stream
        if self._is_watched:
            self._timer = self._run.leg(now)

    @property
    def decode(self) -> Endpoint:
        """The decode engine."""
        return self._run.step.endpoint

    @property
    def prefill(self) -> Endpoint | None:
        """The leased prefill engine, or None."""
        prefill = self.record.prefill
        return prefill if prefill is not None and self._run.has_leased(prefill) else None

    def decodes(self, now: float) -> tuple[Endpoint, ...]:
        """The decode engine and alternatives for retries, best first."""
        chosen, facts = self.decode, self._run.facts
        assert facts is not None, "the answer has not begun"
        if split_rank(chosen.url)[1] is not None:  # retries would send the rank header too
            return (chosen,)
        try:
            ranking = self._scheduler.rank(DECODE, facts, frozenset({chosen}), now)
        except NoEngine:
            return (chosen,)
        ordered = sorted(zip(ranking.scores, ranking.candidates, strict=True), key=_score)
        return (chosen, *(candidate.endpoint for _, candidate in ordered[:ALTERNATIVES]))

    # Called with what Envoy reports.

    def on_head(self, status: int, served: Endpoint | None, now: float) -> None:
        """The answer has begun. `served`: the engine that it comes from, if Envoy tells."""
        run = self._run
        if served is not None and served != self.decode:
            self._move(served, now)
        self.record.status = status
        seconds, model = now - run.asked_at, self.record.model
        self._observe(LegAnswered(self.decode, status, seconds, model=model))
        if self._timer is None:  # the body will not be seen
            run.prefilled()
        run.begun(now)

    def on_body(self, data: bytes, now: float) -> None:
        """Data of the answer's body."""
        record = self.record
        record.chunks += 1
        record.bytes_out += len(data)
        if record.first_byte is None and data:
            record.first_byte = now
        timer = self._timer
        if timer is None or not data or record.status >= 400:
            return
        end = self._tail + data
        self._tail = end[-TAIL_BYTES:]
        if not self._is_stream:
            self._is_abort = self._is_abort or end.find(ABORT) >= 0
            return
        whole = self._splitter.feed(data)
        self._error = error_in(whole) or self._error
        found = data_events(whole) if self._events else self._begin(whole, timer, now)
        self._events += found
        timer.counts.counter.tokens += found

    def _begin(self, whole: bytes, timer: LegTimer, now: float) -> int:
        """Look for the first event with content. Returns the number of events with data after
        it."""
        found = events(whole)
        for place, event in enumerate(found, 1):
            kind = event_kind(event)
            if kind is EventKind.CONTENT:
                timer.first_token(now)
                self._release_prefill()
                self._events = 1
                return sum(1 for each in found[place:] if data_of(each))
            if kind is not EventKind.PREAMBLE:  # a failure must not count as a token's time
                timer.end(now)
                self._timer = None
                if kind is EventKind.ABORTED:
                    self.fail(DROPPED, DROPPED.message)
                else:
                    self._report(event)
                break
        return 0

    def _report(self, event: bytes) -> None:
        """Record an error event of the stream."""
        status = status_of(event)
        if status >= 500:
            text = engine_error(DECODE, status, data_of(event))
            self.fail(failed_stream(event), text)

    def fail(self, failure: Failure, error: str) -> None:
        """Record that the engine has failed the request. `error`: the text for the record."""
        self._has_failed = True
        self.record.error = error
        self._run.failed(failure)

    def on_end(self, now: float) -> None:
        """The answer is complete."""
        if self.is_over:
            return
        self.is_over = True
        timer, record = self._timer, self.record
        if timer is not None and self._error:
            self._report(self._error)
        elif timer is not None and record.status < 400:
            tokens = generated_tokens(self._tail)
            if not self._is_stream and not tokens and self._is_abort:
                self.fail(DROPPED, DROPPED.message)
            elif not self._is_stream:
                timer.unary_answer(now, tokens)
            elif tokens and self._events:
                timer.calibrate(tokens, self._events, now)
        if 0 < record.status < 500 and not self._has_failed:
            self._observe(LegDone(self.decode, record.model))

    def end(self, now: float, error: str | None = None, *, is_aborted: bool = False) -> None:
        """The request has ended for any reason. `is_aborted`: because the router is shutting down.
        Call it once."""
        if self._timer is not None:
            self._timer.end(now)
        self._run.close()
        record = self.record
        record.asked_at, record.ended, record.error = self._run.asked_at, now, record.error or error
        is_good = record.error is None and 0 < record.status < 400
        record.outcome = record.failure if not is_good else "ok"
        if record.error is None and not self.is_over and (self._is_watched or not record.status):
            record.outcome = "aborted" if is_aborted else "client_left"
        self._observe(record)

    def _move(self, served: Endpoint, now: float) -> None:
        """Move the lease to another engine, because Envoy has retried and that engine has
        answered."""
        run = self._run
        fallback = FellBack(DECODE, "gateway_retry")
        self.record.fallbacks += (fallback,)
        self._observe(fallback)
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.end(now)
        try:
            run.move_to(served, now, computes=self.record.mode is not REMOTE)
        except NoEngine:  # it has left the fleet; its answer is passed on all the same
            return
        if timer is not None:
            self._timer = run.leg(now)

    def _release_prefill(self) -> None:
        prefill = self.prefill
        if prefill is not None:
            self._run.release(prefill)


def _score(pair: tuple[float, object]) -> float:
    return pair[0]


def pick(facts: Facts, decision: Decision) -> Plan:
    """The plan: lease the engines that the decision needs. Raises NoEngine.

    Envoy sends the request to the decode engine with the prefill engine's address in a header; a
    sidecar there requests the prefill and loads the KV cache. Both engines are leased at the same
    time, until the answer has ended.
    """
    if decision.mode is REMOTE:
        decode = yield Lease(DECODE, computes=False)
        try:
            yield Lease(PREFILL)
        except NoEngine:
            yield FellBack(PREFILL, "no_prefill_engine")
            yield Release(decode)
            decode = yield Lease(DECODE)
    else:
        decode = yield Lease(DECODE)
    yield Stream(decode, facts.path, b"")
