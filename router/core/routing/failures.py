"""What has failed one request so far: where else it may go, and which engine is at fault."""

from collections.abc import Callable

from router.core.events import Event, FellBack, LegFailed, RequestEnded
from router.core.plans import steps
from router.core.plans.steps import Call, Stream
from router.core.request_facts import Facts
from router.core.routing.schedule import Scheduler
from router.core.values import ENCODE, PREFILL, Endpoint, Reply, Role

__all__ = ["Failures", "is_load_failure"]

NO_ENDPOINTS: frozenset[Endpoint] = frozenset()


class Failures:
    """It takes retries from the scheduler's budget, and observes failures once it is known which
    engine is at fault."""

    __slots__ = (
        "_left",
        "_observe",
        "_record",
        "_scheduler",
        "_server_errors",
        "_suspects",
        "said",
    )

    def __init__(
        self, scheduler: Scheduler, observe: Callable[[Event], None], record: RequestEnded
    ) -> None:
        self.said: tuple[Stream, Reply] | None = None
        """The last answer of a decode engine with one of SERVER_ERRORS, and the request for it."""
        self._scheduler = scheduler
        self._observe = observe
        self._record = record
        self._left = NO_ENDPOINTS
        """Engines that have not failed: they refused the request because they are full, or were
        drained."""
        self._server_errors = 0
        """Number of answers of prefill and decode engines with one of SERVER_ERRORS."""
        self._suspects: tuple[LegFailed, ...] = ()
        """Failures of decode engines that may be failed KV loads. It is not known yet whether the
        decode engine or the prefill engine is at fault."""

    # Where else it may go.

    def left(self, endpoint: Endpoint) -> None:
        """Note that an engine is left although it has not failed: it is full, or drained."""
        self._left |= {endpoint}

    def may_move(
        self,
        step: steps.Lease | steps.Check,
        facts: Facts,
        now: float,
        *,
        computes: bool,
        is_taken: bool,
    ) -> bool:
        """Whether another engine may be used instead of those that have failed the request.

        Leaving a full engine takes no retry from the budget, since it has done no work, and
        leaving a drained one does not, since that is an order.
        But if the next engine does not compute the prompt, a further prefill is needed, which would
        be wasted if all are full.
        """
        role, record = step.role, self._record
        last = record.prefill if role is PREFILL else record.decode
        if last in self._left and (
            computes or self._scheduler.has_other(role, facts, step.exclude, now)
        ):
            return True
        return self.has_retry(role, now, is_taken=is_taken)

    def has_retry(self, role: Role, now: float, *, is_taken: bool) -> bool:
        """Whether the budget has a retry left. Observes a fallback event if not."""
        budget = self._scheduler.retry_budget
        if budget is None or (budget.take(now) if is_taken else budget.has_one(now)):
            return True
        self._observe(FellBack(role, "retry_budget"))
        return False

    # Which engine is at fault.

    def is_final(self, step: Call | Stream, reply: Reply) -> bool:
        """Whether a server error goes to the client. It may be the request that breaks engines,
        which must not go through the pool. Errors of prefill engines count too, but there the plan
        goes on in another way. Those of encode engines do not: they get the media alone."""
        self._server_errors += step.endpoint.role is not ENCODE
        if isinstance(step, Call):
            return False
        self.said = step, reply
        return self._server_errors > self._scheduler.retries_on_5xx

    def suspect(self, failure: LegFailed) -> None:
        """Add a failure that may be a failed KV load, until another attempt shows more."""
        self._suspects += (failure,)

    def served_by(self, step: Call | Stream) -> None:
        """A decode engine has served the request. If it has loaded a KV cache, transfers work, so
        the other decode engines that failed before are at fault; otherwise nothing is known, and
        nothing is reported."""
        suspects, self._suspects = self._suspects, ()
        if is_load_failure(step, 500):
            for failure in suspects:
                if failure.endpoint != step.endpoint:
                    self._observe(failure)


def is_load_failure(step: Call | Stream, status: int) -> bool:
    """Whether a response may be a failed KV load, which can be the prefill engine's fault."""
    return isinstance(step, Stream) and step.is_load_failure(status)
