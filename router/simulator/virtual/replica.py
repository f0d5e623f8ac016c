"""One router process: its own fleet and scheduler, and the shell's part played in virtual time.

What `router/net` would do on seeing an engine's bytes is done here on seeing its steps: the same
calls on leases and legs, the same events, the same retries.
"""

from collections.abc import Sequence
from random import Random

from router.core.care import Care
from router.core.errors import NoEngine
from router.core.events import LegAnswered, LegDone, LegFailed, Probed, Scraped
from router.core.fleet import Fleet
from router.core.health import Rules, Sight
from router.core.ledger import Lease, Ledger
from router.core.member import Member
from router.core.policies import Policy
from router.core.retry import ATTEMPTS
from router.core.routes import ROUTES
from router.core.schedule import Scheduler
from router.core.values import Endpoint, Facts, FailureKind, Role
from router.simulator.virtual.attempt import Answer, Attempt
from router.simulator.virtual.engine import Engine
from router.simulator.virtual.request import Request

__all__ = ["Replica", "endpoints"]

STALE_AFTER = 3.0
"""Three scrapes, as in router/web/app.py."""


def endpoints(engines: int) -> list[Endpoint]:
    """The addresses of modelled engines, in order."""
    return [Endpoint(f"http://e{number}", Role.DECODE) for number in range(engines)]


class Replica:
    """A router. It sees its own requests, the gauges that it scrapes, and nothing else."""

    def __init__(
        self, number: int, engines: Sequence[Engine], policy: Policy, rng: Random, care: Care
    ) -> None:
        self.number = number
        self.engines = engines
        self.fleet = Fleet(endpoints(len(engines)), Ledger(), Rules(), STALE_AFTER, care)
        policies = dict.fromkeys(Role, policy)
        self.scheduler = Scheduler(self.fleet, policies, threshold=1 << 40, rng=rng)
        self.pool = self.fleet.pool(Role.DECODE)
        self._facts: dict[int, Facts] = {}
        self._unheard: list[dict[_Asked, None]] = [{} for _ in engines]
        """The requests on each engine that have no token yet."""
        self.see_health(0.0)

    # Requests.

    def send(self, request: Request, now: float) -> None:
        """Choose an engine and ask it, then the next one, while that is safe."""
        while len(request.tried) < ATTEMPTS:
            facts = self._facts_of(request.prompt)
            try:
                lease = self.scheduler.lease(Role.DECODE, facts, request.tried, now)
            except NoEngine:
                break
            if self._ask(_Asked(self, request, lease), now):
                return
            request.tried |= {lease.endpoint}
        request.done(request, now)

    def _ask(self, attempt: "_Asked", now: float) -> bool:
        """Whether the leased engine took the request on."""
        endpoint = attempt.lease.endpoint
        place = self.fleet.member(endpoint).ordinal
        attempt.place = attempt.request.engine = place
        answer = self.engines[place].submit(attempt, now)
        if answer is Answer.ACCEPTED:
            attempt.leg = self.scheduler.leg(attempt.lease, now, is_heard=True)
            self._unheard[place][attempt] = None
            self.fleet.observe(LegAnswered(endpoint, 200, 0.0), now)
            return True
        attempt.lease.release()
        if answer is Answer.REFUSED:
            self.fleet.observe(LegFailed(endpoint, FailureKind.REFUSED), now)
        else:
            self.fleet.observe(LegAnswered(endpoint, int(answer), 0.0), now)
        return False

    def heard(self, attempt: "_Asked") -> None:
        """It has its first token, or never will."""
        self._unheard[attempt.place].pop(attempt, None)

    def ended(self, attempt: "_Asked", now: float, failure: FailureKind | None) -> None:
        """An attempt is over; a request that nobody has answered moves on."""
        attempt.leg.end(now)
        attempt.lease.release()
        self.heard(attempt)
        request, endpoint = attempt.request, attempt.lease.endpoint
        if failure is None:
            self.fleet.observe(LegDone(endpoint), now)
            request.is_good = True
            request.done(request, now)
            return
        self.fleet.observe(LegFailed(endpoint, failure), now)
        request.tried |= {endpoint}
        if request.first is None:
            self.send(request, now)
        else:
            request.done(request, now)

    def _facts_of(self, tokens: int) -> Facts:
        facts = self._facts.get(tokens)
        if facts is None:
            facts = self._facts[tokens] = request_of(tokens)
        return facts

    # What happens again and again.

    def leave_stalled(self, now: float) -> None:
        """Requests without a token leave engines that stopped, as the relay's sweep has it."""
        for place, member in enumerate(self.pool):
            if not member.pace.is_stalled:
                continue
            for attempt in list(self._unheard[place]):
                request = attempt.request
                facts = self._facts_of(request.prompt)
                if len(request.tried) + 1 < ATTEMPTS and self.scheduler.has_other(
                    Role.DECODE, facts, request.tried | {member.endpoint}, now
                ):
                    self.engines[place].abort(attempt)
                    self.ended(attempt, now, FailureKind.STALLED)

    def scrape(self, now: float) -> None:
        """Read every engine's gauges."""
        for engine, member in zip(self.engines, self.pool, strict=True):
            if member.health.is_usable:
                gauges = engine.gauges if engine.is_up else None
                self.fleet.observe(Scraped(member.endpoint, gauges, member.view.in_flight), now)

    def see_health(self, now: float) -> None:
        """Probe every engine's presence."""
        for engine, member in zip(self.engines, self.pool, strict=True):
            self._probe(engine, member, now)

    def see_health_of_absent(self, now: float) -> None:
        """Probe those that are not up, which is done more often."""
        for engine, member in zip(self.engines, self.pool, strict=True):
            if not member.health.is_usable:
                self._probe(engine, member, now)

    def _probe(self, engine: Engine, member: Member, now: float) -> None:
        sight = Sight.OK if engine.is_up else Sight.FAILED
        self.fleet.observe(Probed(member.endpoint, sight), now)


def request_of(tokens: int) -> Facts:
    """What the router knows of a streaming request with a prompt of so many tokens."""
    return Facts(
        route=ROUTES["/v1/completions"],
        model=None,
        stream=True,
        tokens=tokens,
        rule="simulated",
        direct_reason=None,
        raw=b"",
    )


class _Asked(Attempt):
    """A client's request at an engine."""

    __slots__ = ("lease", "place", "request", "router")

    place: int

    def __init__(self, router: Replica, request: Request, lease: Lease) -> None:
        super().__init__(router.number, request.prompt, request.output)
        self.router = router
        self.request = request
        self.lease = lease

    def on_first(self, now: float) -> None:
        """The client's first token."""
        self.leg.first(now)
        self.request.first = now
        self.router.heard(self)

    def on_last(self, now: float) -> None:
        """The client has it all."""
        self.router.ended(self, now, None)

    def on_lost(self, now: float) -> None:
        """The engine died under it."""
        has_begun = self.request.first is not None
        kind = FailureKind.BROKEN if has_begun else FailureKind.RESET
        self.router.ended(self, now, kind)
