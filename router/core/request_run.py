"""One request's run: its plan, its leases, its attempts and its record.

All that is decided between the choice of the way and the request's end is decided here. Whoever
makes the calls (`net/exchange.py`, or `simulator/virtual/replica.py`) does so in this order:

    action = run.start(plan, now)
    while action is not None:
        ...                      # make the call, wait for the KV cache, or send the reply
        action = run.settle(...)  # or run.answer(...)
    run.close()

It is pure: no sockets and no clock. Times are seconds of one monotonic clock.
"""

from collections.abc import Callable
from random import Random

from router.core.errors import RouterError
from router.core.events import (
    Chosen,
    Event,
    FellBack,
    LegAnswered,
    LegDone,
    LegFailed,
    RequestEnded,
)
from router.core.ledger import Lease
from router.core.leg_timer import LegTimer
from router.core.plans import steps
from router.core.plans.steps import AwaitKV, Call, Outcome, Plan, Send, Stream
from router.core.retry import ATTEMPTS, may_replay
from router.core.schedule import Scheduler
from router.core.values import Endpoint, Facts, Failure, FailureKind, Role

__all__ = ["ENGINE_REQUESTS", "Action", "RequestRun"]

Action = Call | Stream | AwaitKV | Send
"""What is to be done next, and how it is answered: a `Call` or a `Stream` by `settle`, an `AwaitKV`
by `answer` with whether the KV cache is ready, a `Send` by `answer` with None."""

ENGINE_REQUESTS = (Stream, Call)
WAITS = (AwaitKV, Send)

NO_ENDPOINTS: frozenset[Endpoint] = frozenset()


class RequestRun:
    """Drives one request's plan. `close` releases whatever it holds, however the request ended.

    `sample` is the share of choices, 0 to 1, that are observed with all their candidates.
    """

    __slots__ = (
        "_leases",
        "_observe",
        "_plan",
        "_rng",
        "_sample",
        "_scheduler",
        "_tried",
        "asked_at",
        "facts",
        "record",
        "step",
    )

    step: Call | Stream
    """The engine request that was made last."""

    def __init__(
        self,
        scheduler: Scheduler,
        observe: Callable[[Event], None],
        facts: Facts,
        record: RequestEnded,
        *,
        rng: Random,
        sample: float = 0.0,
    ) -> None:
        self.facts: Facts | None = facts
        """None once the answer has begun: a stream need not keep its prompt in memory."""
        self.record = record
        self.asked_at = 0.0
        """When `step` was to be made."""
        self._scheduler = scheduler
        self._observe = observe
        self._rng = rng
        self._sample = sample
        self._plan: Plan | None = None
        self._leases: dict[Endpoint, Lease] = {}
        self._tried = NO_ENDPOINTS
        """Decode engines that have failed this request: those that the last lease excluded."""

    def start(self, plan: Plan, now: float) -> Action | None:
        """The plan's first action. Raises as `answer` does."""
        self._plan = plan
        return self.answer(None, now)

    def settle(
        self, outcome: Outcome | None, failure: Failure | None, status: int, now: float
    ) -> Action | None:
        """The call or stream is over; returns the next action. Raises as `answer` does.

        `failure` is how the engine failed, even if the client has been told of it and `outcome`
        is None for that reason; `status` is that of its answer, 0 if none began.
        """
        step = self.step
        if failure is not None:
            self._observe(LegFailed(step.endpoint, failure.kind, self.asked_at))
        elif status < 500:
            self._observe(LegDone(step.endpoint))
        if isinstance(step, Call):
            self.record.prefill_seconds = now - self.asked_at
        return self.answer(outcome, now)

    def answer(self, answer: Outcome | bool | None, now: float) -> Action | None:
        """Answer the plan; returns its next action, None when the request has its answer.

        Raises the RouterError that the client is to be told.
        """
        plan = self._plan
        if plan is None:
            return None
        given: object = answer
        try:
            while True:
                step = plan.throw(given) if isinstance(given, RouterError) else plan.send(given)
                if isinstance(step, ENGINE_REQUESTS):
                    self.step = step
                    self.asked_at = now
                    return step
                if isinstance(step, WAITS):
                    return step
                try:
                    given = self._do(step, now)
                except RouterError as error:
                    given = error  # it is raised inside the plan
        except StopIteration:
            return None

    def _do(
        self, step: steps.Check | steps.Lease | steps.Release | FellBack, now: float
    ) -> Endpoint | None:
        """A step that needs no I/O. Raises NoEngine."""
        if isinstance(step, steps.Lease):
            return self._lease(step, now)
        if isinstance(step, steps.Release):
            self._leases.pop(step.endpoint).release()
        elif isinstance(step, steps.Check):
            self._scheduler.check(step.role, self._known, step.exclude, now)
        else:
            self.record.fallbacks.append(step)
            self._observe(step)
        return None

    def _lease(self, step: steps.Lease, now: float) -> Endpoint:
        role, facts = step.role, self._known
        told: tuple[str, ...] = ()
        if self._sample and self._rng.random() < self._sample:
            told = self._scheduler.explained(role, facts, now)
        lease = self._scheduler.lease(role, facts, step.exclude, now, computes=step.computes)
        endpoint = lease.endpoint
        self._leases[endpoint] = lease
        if told:
            self._observe(Chosen(self.record.request_id, role, endpoint, told))
        if role is Role.PREFILL:
            self.record.prefill = endpoint
        else:
            self.record.decode = endpoint
            self._tried = step.exclude
        return endpoint

    @property
    def _known(self) -> Facts:
        assert self.facts is not None, "the answer has begun"
        return self.facts

    # What is asked while an engine is at work.

    def leg(self, now: float) -> LegTimer:
        """The timer of the engine request that is made now."""
        step = self.step
        lease = self._leases[step.endpoint]
        if isinstance(step, Call):  # a prefill makes one token, whatever was asked for
            return self._scheduler.leg(lease, now, tracks_first_token=True)
        facts = self._known
        return self._scheduler.leg(
            lease, now, tracks_first_token=facts.stream, sequences=facts.sequences
        )

    def answered(self, status: int, now: float) -> None:
        """The engine's answer begins."""
        step = self.step
        # A decode engine that keeps its errors back reports what is its prefill engine's, too.
        is_own_doing = isinstance(step, Call) or 500 not in step.keep
        self._observe(LegAnswered(step.endpoint, status, now - self.asked_at, is_own_doing))

    @property
    def may_replay(self) -> bool:
        """Whether the request may be sent twice when nothing was heard of the first."""
        step = self.step
        return isinstance(step, Call) or step.replay

    def replays(self, outcome: Outcome | None, *, is_reused: bool) -> bool:
        """Whether to send it once more instead of settling it.

        An engine closes idle connections when it likes: a reset on one that was reused says
        nothing of the engine.
        """
        is_stale = isinstance(outcome, Failure) and outcome.kind is FailureKind.RESET
        return is_stale and is_reused and self.may_replay

    def may_leave_stalled(self, now: float) -> bool:
        """Whether a request that waits for a stalled engine has somewhere else to go."""
        facts, endpoint = self._known, self.step.endpoint
        return (
            len(self._tried) + 1 < ATTEMPTS
            and may_replay(facts)
            and self._scheduler.has_other(endpoint.role, facts, self._tried | {endpoint}, now)
        )

    # The end.

    def begun(self) -> None:
        """The client has had a first token: there is no other way any more.

        A stream may last for minutes, and its prompt, as bytes and parsed, is most of its memory.
        """
        self._drop_plan()
        self.facts = None
        self.step.body = b""

    def close(self) -> None:
        """End the request: its leases are released. Doing it again changes nothing."""
        for lease in self._leases.values():
            lease.release()
        self._drop_plan()

    def _drop_plan(self) -> None:
        plan, self._plan = self._plan, None
        if plan is not None:
            plan.close()
