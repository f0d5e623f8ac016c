"""Drives one request: its plan, its leases, its attempts and its record.

The caller (`net/request/served_request.py`, in virtual time
`simulator/virtual/exchange.py`) does the I/O, in this order:

    action = run.start(facts, plan, now)
    while action is not None:
        ...                      # make the call, wait for the KV cache, or send the reply
        action = run.settle(...)  # or run.answer(...)
    run.close()

It is pure: no sockets and no clock. Times are seconds of one monotonic clock.
"""

from collections.abc import Callable
from random import Random
from typing import Final

from router.core.continuation.handover import LEFT, Handover
from router.core.continuation.journal import Journal
from router.core.errors import NoEngine, RouterError
from router.core.events import (
    Chosen,
    Continuation,
    Decided,
    Event,
    FellBack,
    LegAnswered,
    LegDone,
    LegFailed,
    RequestEnded,
)
from router.core.fleet.ledger import Lease
from router.core.fleet.leg_timer import LegTimer
from router.core.limits.places import Place
from router.core.plans import steps
from router.core.plans.renamed import Renamed
from router.core.plans.steps import (
    AwaitKV,
    AwaitMove,
    BackOff,
    Call,
    Outcome,
    Plan,
    Plans,
    Send,
    Splice,
    Stream,
)
from router.core.plans.store import StoreSplice
from router.core.request_facts import NO_BODY, Destinations, Facts
from router.core.retry import (
    ATTEMPTS,
    BUSY,
    FULL_SECONDS,
    SERVER_ERRORS,
    back_off,
    error_of,
    full_seconds,
    is_shutdown,
    may_replay,
)
from router.core.routing.failures import Failures, is_load_failure
from router.core.routing.schedule import Scheduler
from router.core.routing.stored_responses import UNIQUE_BITS, keepers, response_id
from router.core.values import (
    DECODE,
    PREFILL,
    RESPONSES,
    Decision,
    Endpoint,
    Failure,
    FailureKind,
    Reply,
    Role,
)
from router.core.wire.jsonspan import with_member
from router.core.wire.usage import prefilled_tokens

__all__ = ["ENGINE_REQUESTS", "Action", "RequestRun"]

Action = Call | Stream | AwaitKV | AwaitMove | Send | BackOff
"""What the caller has to do next. It passes the result of a `Call` or `Stream` to `settle`, of an
`AwaitKV` to `answer` (whether the KV cache is ready), and of the others to `answer` (None)."""

ENGINE_REQUESTS = (Stream, Call)
WAITS = (AwaitKV, Send)

SHUTTING_DOWN: Final = Failure(FailureKind.SHUTTING_DOWN, "The engine is shutting down.")

NO_ENDPOINTS: frozenset[Endpoint] = frozenset()


class RequestRun:
    """Drives one request's plan. Call `close` at its end, however it ends.

    `sample`: share of engine choices, 0 to 1, that are observed with all candidates.
    """

    __slots__ = (
        "_attempts",
        "_failures",
        "_leases",
        "_names_response",
        "_observe",
        "_plan",
        "_postponed",
        "_refusal",
        "_rng",
        "_sample",
        "_scheduler",
        "_tried",
        "_unique",
        "asked_at",
        "facts",
        "handover",
        "journal",
        "place",
        "record",
        "step",
    )

    step: Call | Stream
    """The latest engine request."""

    def __init__(
        self,
        scheduler: Scheduler,
        observe: Callable[[Event], None],
        record: RequestEnded,
        rng: Random,
        sample: float = 0.0,
    ) -> None:
        self.facts: Facts | None = None
        """None before the start, and once the answer has begun, so that a stream does not keep its
        prompt in memory."""
        self.handover: Handover | None = None
        """How another engine would go on with the stream; None if none could."""
        self.journal: Journal | None = None
        """What it would need for that."""
        self.place: Place | None = None
        """The request's place in admission; None without a limit."""
        self.record = record
        self.asked_at = 0.0
        """When `step` was sent."""
        self._scheduler = scheduler
        self._observe = observe
        self._rng = rng
        self._sample = sample
        self._plan: Plan | None = None
        self._refusal: str | None = None
        """Why none could; None also if none is asked to."""
        self._postponed: steps.Lease | None = None
        """The lease that follows the end of a `BackOff`."""
        self._names_response = False
        """Whether engines get the id of the response from the router."""
        self._unique = 0
        """The part of that id that no other attempt has."""
        self._leases: dict[Endpoint, Lease] = {}
        self._tried = NO_ENDPOINTS
        """Decode engines that have failed this request, as excluded by the last lease."""
        self._attempts = 0
        """Number of requests sent to decode engines."""
        self._failures: Failures | None = None
        """What has failed the request; None while nothing has, as nearly always."""

    @property
    def awaits_move(self) -> bool:
        """Whether its stream waits to go on with another engine."""
        return self.handover is not None and self.handover.awaits_move

    def decided(self, decision: Decision) -> None:
        """Record the decision, and log it if it is sampled."""
        record = self.record
        record.mode, record.reason = decision.mode, decision.reason
        if decision.delay is not None and self._rng.random() < self._sample:
            self._observe(Decided(record.request_id, decision))

    def start(
        self, facts: Facts, plan: Plan, now: float, plans: Plans | None = None
    ) -> Action | None:
        """Returns the plan's first action. Raises as `answer` does.

        `plans`: creates the plan by which another engine goes on with the stream; None if none may.
        """
        self.facts = facts
        self._plan = plan
        if facts.route.kind is RESPONSES:
            self._names_response = facts.body.get("request_id") is None
            if self._scheduler.follows_stored:
                facts.names_keeper = self._names_response
                self._follow_stored(facts)
        if self._scheduler.continues and facts.stream and plans is not None:
            self._refusal = self._scheduler.refusal(facts)
            if self._refusal is None:
                self.journal = Journal(facts)
                self.handover = Handover(self.journal, plans)
                facts.raw = with_member(facts.raw, "return_token_ids", b"true")
        budget = self._scheduler.retry_budget
        if budget is not None:
            budget.request()
        return self.answer(None, now)

    def _follow_stored(self, facts: Facts) -> None:
        """Send the request to the engine that has the response to which it refers, if that can take
        it and no gateway has chosen another one."""
        previous, scheduler = facts.body.get("previous_response_id"), self._scheduler
        if previous is None or facts.destinations is not None:
            return
        pool = scheduler.fleet.pool(DECODE)
        found = keepers(previous, [member.endpoint for member in pool])
        if scheduler.selection.usable_of(found, NO_ENDPOINTS):
            facts.destinations = Destinations((), found)

    def settle(
        self, outcome: Outcome | None, failure: Failure | None, status: int, now: float
    ) -> Action | None:
        """Report the end of a `Call` or `Stream`. Returns the next action. Raises as `answer` does.

        `failure`: how the engine failed; without an `outcome` if the client was sent the error, and
        with a reply if the engine reported it as an event.
        `status`: HTTP status of the answer; 0 if none began.
        """
        if status == 500 and isinstance(outcome, Reply) and is_shutdown(outcome):
            outcome = failure = SHUTTING_DOWN
        self._note_end(outcome, failure, status, now)
        if not isinstance(outcome, Reply):
            if outcome is None and (failure or self._failures or self.handover):  # seldom
                self._delivered(failure, status)
        elif is_load_failure(self.step, status):
            return self._suspect(outcome, now)
        elif status in SERVER_ERRORS and self._known_failures().is_final(self.step, outcome):
            self._drop_plan()
            return Send(outcome)
        return self.answer(outcome, now)

    def _delivered(self, failure: Failure | None, status: int) -> None:
        """The client has been sent an answer, or its beginning if the engine has failed."""
        handover = self.handover
        if failure is None:
            if self._failures is not None and status < 400:
                self._failures.served_by(self.step)
            if handover is not None and handover.journal.is_continued:
                has_failed = FellBack(DECODE, "continued") in self.record.fallbacks
                self.record.continuation = handover.ended("continued" if has_failed else "moved")
        elif handover is None:
            if self._refusal is not None:
                self.record.continuation = Continuation(self._refusal)
        elif (reason := handover.journal.reason) is not None:
            self.record.continuation = handover.ended(reason)

    def _note_end(
        self, outcome: Outcome | None, failure: Failure | None, status: int, now: float
    ) -> None:
        """Observe how the engine request ended, and record it."""
        step = self.step
        if status in BUSY and isinstance(outcome, Reply):
            full = full_seconds(outcome)
            if full:
                self._known_failures().left(step.endpoint)
                if self.handover is not None:
                    self.handover.spare(step.endpoint)
            seconds = now - self.asked_at
            self._observe(
                LegAnswered(
                    step.endpoint,
                    status,
                    seconds,
                    not full,
                    full_seconds=full,
                    model=self.record.model,
                )
            )
        if failure is not None:
            if not (isinstance(outcome, Reply) and self._is_excused(status)):
                self.failed(failure)
        elif status < 500:
            self._observe(LegDone(step.endpoint, self.record.model))
        if isinstance(step, Call) and step.is_prefill:
            self.record.prefill_seconds = now - self.asked_at
            self.record.prefilled_at = now
            if isinstance(outcome, Reply) and status == 200:
                self.record.prompt_tokens = prefilled_tokens(outcome.body)
        elif isinstance(step, Stream) and step.splice is not None:
            self._note_miss(step.splice, now)

    def _note_miss(self, splice: Splice, now: float) -> None:
        """Count a prompt that the decode engine did not find in the store."""
        inner = splice.then if isinstance(splice, Renamed) else splice
        if isinstance(inner, StoreSplice) and inner.is_missed:
            self._do(FellBack(DECODE, "store_miss"), now)

    def _suspect(self, reply: Reply, now: float) -> Action | None:
        """Answer the plan's step with what may be a failed KV load."""
        suspect = self._failure_event(
            FailureKind.BROKEN, f"it answered a request with {reply.status}"
        )
        action = self.answer(reply, now)
        if isinstance(action, Send):  # no other attempt will show which engine is at fault
            self._observe(suspect)
        else:
            self._known_failures().suspect(suspect)
        return action

    def answer(self, answer: Outcome | bool | None, now: float) -> Action | None:
        """Answer the plan's last step. Returns the next action, or None if the request has been
        answered.

        Raises the RouterError to be sent to the client, unless an engine has said something: then
        the client gets that.
        """
        handover = self.handover
        try:
            if handover is None:
                return None if self._plan is None else self._advance(answer, now)
            if self._plan is None:
                if not handover.awaits_move:
                    return self._await_move(handover, now)
                decide = self._scheduler.decide
                self._plan = handover.plan(self._known(), lambda facts: decide(facts, now))
            action = self._advance(answer, now)
            if isinstance(action, Send) and handover.tries_again(action.reply, now):
                return self._try_again(handover)
            return action
        except RouterError:
            if handover is not None and handover.is_cut:
                if handover.try_slow():
                    return self._try_again(handover)
                self.record.continuation = handover.ended(handover.obstacle)
            if self._failures is None or self._failures.said is None:
                raise
            self.step, reply = self._failures.said
            self.record.decode = self.step.endpoint
            return Send(reply)

    def _advance(self, answer: Outcome | bool | None, now: float) -> Action | None:
        plan = self._plan
        assert plan is not None, "the answer has not begun"
        given: object = answer
        try:
            if self._postponed is not None:
                given = self._resumed(self._postponed, now)
            while True:
                step = plan.throw(given) if isinstance(given, RouterError) else plan.send(given)
                try:
                    if isinstance(step, steps.Lease):
                        if (
                            step.exclude
                            and step.is_attempt
                            and (wait := self._back_off(step, now)) is not None
                        ):
                            return wait
                        given = self._lease(step, now)
                        continue
                    if isinstance(step, ENGINE_REQUESTS):
                        if self._names_response:
                            self._name_response(step)
                        self.step = step
                        self.asked_at = now
                        self._attempts += isinstance(step, Stream)
                        return step
                    if isinstance(step, WAITS):
                        return step
                    given = self._do(step, now)
                except RouterError as error:
                    given = error  # raised inside the plan
        except StopIteration:
            self._plan = None
            return None
        finally:
            given = None  # an error refers to this frame, which would keep the request's body alive

    def _name_response(self, step: Call | Stream) -> None:
        """Write the id of the response into an engine request. The legs of a remote prefill have
        the same: vLLM ignores their X-Request-Id on /v1/responses."""
        names_keeper = self._known().names_keeper
        if isinstance(step, Call):
            if not step.is_prefill:
                return
            is_new, keeper = True, self._partner(PREFILL)
        else:
            is_new, keeper = not step.keeps_id, step.endpoint
            if is_new and not names_keeper:  # the engine makes an id
                return
        if is_new:
            self._unique = self._rng.getrandbits(UNIQUE_BITS)
        name = response_id(self._unique, keeper if names_keeper else None)
        step.body = with_member(step.body, "request_id", name)

    def _await_move(self, handover: Handover, now: float) -> AwaitMove | None:
        """The wait for another engine if the present one was left before the answer's end, else
        None. Raises the error of its failure once ATTEMPTS engines have failed, before the first
        token or behind it: the request may break them."""
        cut = handover.take_cut(now)
        if cut is None:
            return None
        engine, failure = cut
        if len(handover.engines) >= ATTEMPTS:
            raise error_of(failure)
        self.release(engine)
        is_moved = failure is LEFT
        self._do(FellBack(DECODE, "moved") if is_moved else FellBack(DECODE, "continued"), now)
        handover.awaits_move = True
        return AwaitMove()

    def _try_again(self, handover: Handover) -> BackOff:
        """A wait before the stream looks for an engine again."""
        self._drop_plan()
        for endpoint in list(self._leases):
            self.release(endpoint)
        handover.awaits_move = True
        return BackOff(FULL_SECONDS)

    def _back_off(self, step: steps.Lease, now: float) -> BackOff | None:
        """The wait before another engine is leased; None if there is none."""
        seconds = back_off(len(step.exclude), now - self.asked_at, self._rng)
        if not seconds:
            return None
        self._postponed = step
        return BackOff(seconds)

    def _resumed(self, step: steps.Lease, now: float) -> object:
        """Perform a postponed lease. Returns an error instead of raising it, to be raised inside
        the plan."""
        self._postponed = None
        try:
            return self._lease(step, now)
        except RouterError as error:
            return error

    def _do(
        self,
        step: steps.Check | steps.LeaseHealthy | steps.Release | steps.Retry | FellBack,
        now: float,
    ) -> Endpoint | bool | None:
        """Perform a step without I/O and return its answer. Raises NoEngine."""
        if isinstance(step, steps.Release):
            self.release(step.endpoint)
        elif isinstance(step, steps.Retry):
            return self._known_failures().has_retry(step.role, now, is_taken=True)
        elif isinstance(step, steps.Check):
            facts = self._known()
            if step.exclude and not self._known_failures().may_move(
                step, facts, now, computes=False, is_taken=False
            ):
                raise _no_retry(step.role)
            self._scheduler.check(step.role, facts, step.exclude, now)
        elif isinstance(step, steps.LeaseHealthy):
            lease = self._scheduler.lease_healthy(step.role, step.facts, now)
            self._leases[lease.endpoint] = lease
            self.record.encode = lease.endpoint
            return lease.endpoint
        else:
            self.record.fallbacks += (step,)
            self._observe(step)
        return None

    def _lease(self, step: steps.Lease, now: float) -> Endpoint:
        role, facts = step.role, self.facts
        assert facts is not None, "the answer has begun"
        if (
            step.exclude
            and step.is_attempt
            and not self._known_failures().may_move(
                step, facts, now, computes=step.computes, is_taken=True
            )
        ):
            raise _no_retry(role)
        explained: tuple[str, ...] = ()
        if self._sample and self._rng.random() < self._sample:
            explained = self._scheduler.explained(role, facts, now)
        loads = not step.computes and step.is_attempt
        partner = self._partner(role) if role is PREFILL or loads else None
        lease = self._scheduler.lease(
            role,
            facts,
            step.exclude,
            now,
            computes=step.computes,
            partner=partner,
            place=None if role is PREFILL else self.place,
        )
        endpoint = lease.endpoint
        self._leases[endpoint] = lease
        if explained:
            self._observe(Chosen(self.record.request_id, role, endpoint, explained))
        if role is PREFILL:
            self.record.prefill = endpoint
        elif step.is_attempt:
            self.record.decode = endpoint
            self._tried = step.exclude
            if self.handover is not None:
                self.handover.leased(endpoint)
        return endpoint

    def _partner(self, role: Role) -> Endpoint | None:
        """The engine at the other end of the KV transfer, if it has been chosen."""
        record = self.record
        if role is PREFILL:  # the decode engine is leased before it (LMCache) or later (NIXL)
            return record.decode if record.decode in self._leases else None
        return record.prefill

    def _known_failures(self) -> Failures:
        failures = self._failures
        if failures is None:
            failures = Failures(self._scheduler, self._observe, self.record)
            self._failures = failures
        return failures

    def _known(self) -> Facts:
        assert self.facts is not None, "the answer has begun"
        return self.facts

    # While an engine request is in flight.

    def leg(self, now: float) -> LegTimer:
        """Create the timer of the engine request that is about to be sent."""
        step = self.step
        lease = self._leases[step.endpoint]
        if isinstance(step, Call):  # a prefill generates one token
            return self._scheduler.selection.leg(
                lease, now, tracks_first_token=step.is_prefill, computes=step.is_prefill
            )
        facts = self._known()
        return self._scheduler.selection.leg(
            lease, now, tracks_first_token=facts.stream, sequences=facts.sequences
        )

    def answered(self, status: int, now: float) -> None:
        """The engine's answer has begun."""
        step = self.step
        if status in BUSY and (isinstance(step, Call) or status in step.keep):
            return  # the body shows whether that is a failure, see `settle`
        record = self.record
        counts_against_engine = status < 500 or not self._is_excused(status)
        seconds = now - self.asked_at
        self._observe(
            LegAnswered(
                step.endpoint,
                status,
                seconds,
                counts_against_engine,
                record.trace_id,
                model=record.model,
            )
        )

    def failed(self, failure: Failure) -> None:
        """Observe that the engine has failed the latest engine request."""
        self._observe(self._failure_event(failure.kind, failure.cause))

    def _is_excused(self, status: int) -> bool:
        """Whether a response is no evidence against its engine: if another engine has failed the
        request too, it may be the request that breaks engines."""
        failures = self._failures
        has_failed = failures is not None and failures.said is not None and status in SERVER_ERRORS
        return has_failed or is_load_failure(self.step, status)

    def _failure_event(self, kind: FailureKind, cause: str) -> LegFailed:
        return LegFailed(self.step.endpoint, kind, self.asked_at, cause, self.record.model)

    def may_replay(self) -> bool:
        """Whether the request may be sent again if its connection closes before an answer."""
        step = self.step
        return isinstance(step, Call) or step.replay

    def replays(self, outcome: Outcome | None, *, is_reused: bool) -> bool:
        """Whether to send the request again instead of settling it.

        Engines close idle connections, so a reset on a reused connection is not a failure of the
        engine.
        """
        is_stale = isinstance(outcome, Failure) and outcome.kind is FailureKind.RESET
        return is_stale and is_reused and self.may_replay()

    def may_leave_stalled(self, now: float) -> bool:
        """Whether a request on a stalled engine can be moved to another one."""
        if isinstance(self.step, Call):  # the plan can continue without its reply
            return True
        facts, endpoint = self._known(), self.step.endpoint
        budget = self._scheduler.retry_budget
        return (
            (budget is None or budget.has_one(now))
            and self._attempts < ATTEMPTS
            and may_replay(facts)
            and self._scheduler.has_other(endpoint.role, facts, self._tried | {endpoint}, now)
        )

    def leave(self, failure: Failure | None, now: float) -> bool:
        """Let another engine go on with the stream. Returns False if none can, so that the stream
        stays.

        Without a failure, leaving is no attempt, and takes no retry from the budget.
        """
        handover = self.handover
        if handover is None:
            return False
        if failure is not None:
            return self.may_leave_stalled(now) and handover.journal.cut(failure)
        if not self.may_move(now) or not handover.leave(is_drained=not self._is_usable):
            return False
        self._attempts -= 1
        self._known_failures().left(self.step.endpoint)
        return True

    def may_move(self, now: float) -> bool:
        """Whether another engine could go on with the stream of one that has not failed, with no
        risk of an error: stop strings, and several tokens in an event, have to be asked for. A
        slow engine is left only once, and for one that ends the answer sooner."""
        journal, facts, endpoint = self.journal, self._known(), self.step.endpoint
        if journal is None or journal.held:
            return False
        others = self._tried | {endpoint}
        if not self._is_usable:
            return self._scheduler.has_other(DECODE, facts, others, now)
        if journal.is_continued or journal.is_partial:
            return False
        return self._scheduler.has_sooner(endpoint, facts, others, now)

    @property
    def _is_usable(self) -> bool:
        """Whether the engine may get further requests, so that it is left because it is slow."""
        return self._scheduler.selection.is_usable(self.step.endpoint)

    # Leases.

    def has_leased(self, endpoint: Endpoint) -> bool:
        """Whether the request counts on an endpoint."""
        return endpoint in self._leases

    def release(self, endpoint: Endpoint) -> None:
        """Release the lease of an endpoint."""
        self._leases.pop(endpoint).release()

    def prefilled(self) -> None:
        """Assume that the prompt has been computed, where nothing will show it."""
        for lease in self._leases.values():
            lease.prefilled()

    def move_to(self, endpoint: Endpoint, now: float, *, computes: bool) -> None:
        """A gateway has sent the request to another decode engine: lease that one instead. Raises
        NoEngine, with no decode engine leased, if it is not in the fleet.

        `computes`: it computes the prompt instead of loading its KV cache.
        """
        facts = self._known()
        self.release(self.step.endpoint)
        before, facts.destinations = facts.destinations, Destinations((), (endpoint,))
        try:
            lease = self._scheduler.lease(DECODE, facts, frozenset(), now, computes=computes)
        finally:
            facts.destinations = before
        self._leases[endpoint] = lease
        self.step = Stream(endpoint, facts.path, b"")
        self.record.decode = endpoint

    # The end.

    def begun(self, now: float) -> None:
        """The client has received a first token: drop the plan and the prompt, because no retry is
        possible. Another engine could go on with what the journal has.

        A stream may last for minutes, and its prompt is most of its memory.
        """
        if self._failures is not None:
            self._failures.served_by(self.step)
            self._failures.said = None
        self.step.body = b""
        self.step.lead = ()
        self._drop_plan()
        if self.handover is None:
            self.facts = None
        else:
            self.handover.begun(now)
            facts = self._known()
            facts.raw, facts.body, facts.prompt_ids = b"", NO_BODY, b""

    def close(self) -> None:
        """End the request and release its leases. Idempotent."""
        for lease in self._leases.values():
            lease.release()
        if self._plan is not None:
            self._drop_plan()

    def _drop_plan(self) -> None:
        plan, self._plan = self._plan, None
        if plan is not None:
            plan.close()


def _no_retry(role: Role) -> NoEngine:
    return NoEngine(f"A {role} engine failed, and too many requests have been tried again.")
