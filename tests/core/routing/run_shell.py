"""A request's run with a fleet, a scheduler and no sockets, for tests."""

from random import Random

from router.core.events import Event, Probed, RequestEnded
from router.core.fleet.fleet import Fleet
from router.core.fleet.ledger import Ledger
from router.core.health import HealthSignal, HealthThresholds
from router.core.limits.budgets import RetryBudget
from router.core.plans.direct import direct
from router.core.plans.nixl import nixl
from router.core.plans.steps import BackOff, Call, Plan, Stream
from router.core.policies import POLICIES
from router.core.request_facts import Facts
from router.core.routing.request_run import RequestRun
from router.core.routing.schedule import Scheduler
from router.core.values import REMOTE, Decision, Endpoint, Failure, FailureKind, Reply, Role
from tests.core.fixtures import D0, D1, D2, P0, P1, RESPONSES, reply, request, sample

FACTS = request(prompt="x" * 400, stream=True)
STORED = request(RESPONSES, input="x", store=True, stream=True)
STALLED = Failure(FailureKind.STALLED, "stalled")
PREFILLED = reply(200, b'{"kv_transfer_params":{"remote_host":"p0"}}')
FULL = reply(503, sample("queue_full.json"))
ALL = (P0, P1, D0, D1, D2)


class Shell:
    """What a run needs around it; engines are chosen in turn."""

    def __init__(
        self,
        *endpoints: Endpoint,
        facts: Facts = FACTS,
        budget: RetryBudget | None = None,
        retries_on_5xx: int = 1,
        continues: bool = False,
        uncontinued_models: frozenset[str] = frozenset(),
        follows_stored: bool = False,
    ) -> None:
        self.events: list[Event] = []
        self.waits: list[float] = []
        """Seconds of each back-off."""
        self.fleet = Fleet(endpoints, Ledger(), HealthThresholds(), stale_after=5.0)
        for endpoint in endpoints:
            self.up(endpoint)
        policies = dict.fromkeys(Role, POLICIES["round_robin"])
        self.scheduler = Scheduler(
            self.fleet,
            policies,
            threshold=1,
            rng=Random(0),
            retry_budget=budget,
            retries_on_5xx=retries_on_5xx,
            continuation="on" if continues else "off",
            uncontinued_models=uncontinued_models,
            follows_stored=follows_stored,
        )
        self.record = RequestEnded("id", "/v1/completions", 0.0)
        self._facts = facts
        self.run = RequestRun(self.scheduler, self.events.append, self.record, Random(0))

    def up(self, endpoint: Endpoint, signal: HealthSignal = HealthSignal.OK) -> None:
        """A probe saw this."""
        self.fleet.observe(Probed(endpoint, signal), 0.0)

    def start(self, plan: Plan) -> Endpoint:
        """The first engine."""
        return self.asked(self.run.start(self._facts, plan, 0.0, plan_of))

    def fails(self, outcome: Failure) -> Endpoint:
        """The next engine after this failure."""
        return self.asked(self.run.settle(outcome, outcome, 0, 1.0))

    def replies(self, answer: Reply) -> Endpoint:
        """The next engine after this reply."""
        return self.asked(self.run.settle(answer, None, answer.status, 1.0))

    def asked(self, action: object) -> Endpoint:
        """The engine of a call or a stream, after a back-off perhaps."""
        if isinstance(action, BackOff):
            self.waits.append(action.seconds)
            action = self.run.answer(None, 1.0)
        assert isinstance(action, Call | Stream)
        return action.endpoint

    def pending(self, endpoint: Endpoint) -> int:
        """Prompt tokens that the engine is thought to compute."""
        return self.fleet.ledger.load(endpoint).pending

    @property
    def held(self) -> set[Endpoint]:
        """Where the request counts."""
        ledger = self.fleet.ledger
        return {m.endpoint for m in self.fleet if ledger.in_flight(m.endpoint)}


def plan_of(facts: Facts, decision: Decision) -> Plan:
    """The plan of a router with NIXL."""
    return nixl(facts) if decision.mode is REMOTE else direct(facts)


def spent(share: float = 0.0) -> RetryBudget:
    """One that is used up, until later than these tests' times."""
    budget = RetryBudget(share)
    while budget.take(1000.0):
        pass
    return budget
