"""One router process: its own fleet and scheduler, its requests and its speed probes.

The decisions are made by the same classes of `router/core` that `router/net` uses: the plans,
`RequestRun`, which drives them, and the rules of `probing`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random

from router.core.continuation.move_queue import MoveQueue
from router.core.errors import RouterError
from router.core.events import Event, Probed, RequestEnded, Scraped, SharedEvent
from router.core.fleet import probing
from router.core.fleet.fleet import Fleet
from router.core.fleet.ledger import Ledger
from router.core.fleet.worker_events import FleetChanges, for_workers
from router.core.health import HealthSignal, HealthThresholds
from router.core.judge.verdict import Exclusion, ExclusionConfig
from router.core.limits.budgets import RETRY_SHARE, RetryBudget
from router.core.membership.entry import Entry
from router.core.plans.direct import direct
from router.core.plans.nixl import nixl
from router.core.plans.steps import Plan
from router.core.replicas import PeerBoard, PeerReport
from router.core.request_facts import Facts
from router.core.routing.auto_threshold import AutoThreshold
from router.core.routing.deadline import check
from router.core.routing.request_run import RequestRun
from router.core.routing.schedule import Scheduler
from router.core.shared_table import SharedTable, WorkerColumn
from router.core.speed.speed_estimator import SpeedEstimator
from router.core.speed.tuning import TICK_SECONDS
from router.core.values import Decision, Endpoint, Mode, Role
from router.simulator.virtual.agenda import Agenda
from router.simulator.virtual.engine import VirtualEngine
from router.simulator.virtual.exchange import VirtualExchange
from router.simulator.virtual.policies import Strategy
from router.simulator.virtual.requests import ACCEPTED, Attempt, VirtualRequest, facts_of
from router.simulator.virtual.values import AUTO, Scenario, Unread

__all__ = ["Replica"]

SWEEP_SECONDS = 1.0
"""Seconds between checks of waiting requests, as in router/net/limits/timers.py."""

FREE_FROM_BIAS = 1.05
"""A request to an excluded engine counts as misdirected only if another engine is faster by this
factor."""


def plan_of(facts: Facts, decision: Decision) -> Plan:
    """The plan of a request, or of another engine that goes on with its stream."""
    return nixl(facts) if decision.mode is Mode.REMOTE else direct(facts)


class Replica:
    """A router, or one of its worker processes. It sees only its own requests, the gauges that it
    scrapes, and what siblings report or workers share (if the scenario has these)."""

    def __init__(
        self,
        number: int,
        engines: Sequence[VirtualEngine],
        scenario: Scenario,
        strategy: Strategy,
        rng: Random,
        exclusion_config: ExclusionConfig,
        agenda: Agenda,
        memory: memoryview | None = None,
    ) -> None:
        """`memory`: the state that the workers of one router share, if the scenario has them."""
        self.number = number
        self.now = 0.0
        """The current time, because runs observe events without one."""
        self.engines = engines
        self.scenario = scenario
        self.agenda = agenda
        self.served = [0] * len(engines)
        """Answers of each engine, including prefills."""
        self.misdirected = [0] * len(engines)
        """Requests that each engine got while it was excluded and another was better."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when its requests have changed."""
        self.publish: Callable[[SharedEvent], None] = lambda _: None
        """Called with events for the other workers."""
        self._strategy = strategy
        self._policies = dict.fromkeys(Role, strategy.policy)
        speed_roles = probing.roles_that_use_speed(self._policies)
        self._exclusion_config = replace(exclusion_config, speed_roles=speed_roles)
        self._rng = rng
        self._open: dict[VirtualExchange, None] = {}
        self._memory = memory
        self._lives = 0
        self._make_state()
        self.probes = SpeedProbes(self, speed_roles)

    def _make_state(self) -> None:
        """Create the parts of a router, as router/web does from the settings."""
        endpoints = [
            Endpoint(f"http://e{place}", engine.spec.role)
            for place, engine in enumerate(self.engines)
        ]
        has_peers = self.scenario.has_peers
        self._lives += 1
        self._board = PeerBoard(f"{self.number}, life {self._lives}")
        self._board.on_change = lambda: self.on_change()
        column = self._column(endpoints)
        peers = self._board if has_peers else None
        self.fleet = Fleet(
            endpoints,
            Ledger(peers=peers) if column is None else Ledger(column.load, peers),
            HealthThresholds(),
            probing.STALE_SCRAPES * probing.SCRAPE_SECONDS,
            self._exclusion_config,
            lambda each: SpeedEstimator(None if column is None else column.speed(each)),
            shares_prefixes=has_peers or column is not None,
        )
        if any(engine.spec.zone for engine in self.engines):
            zoned = zip(endpoints, self.engines, strict=True)
            entries = [
                Entry(endpoint, row, zone=engine.spec.zone)
                for row, (endpoint, engine) in enumerate(zoned)
            ]
            self.fleet.apply(entries, 0.0)
        self.move_queue = MoveQueue(self.fleet.pools[Role.DECODE])
        self._changes = FleetChanges(self.fleet)
        threshold, impact = self.scenario.threshold, self.scenario.max_itl_impact
        self.scheduler = Scheduler(
            self.fleet,
            self._policies,
            max(0, threshold),
            self._rng,
            self._strategy.cached_roles,
            auto=AutoThreshold(self.fleet, impact) if threshold == AUTO else None,
            retry_budget=RetryBudget(RETRY_SHARE),
            continuation="on" if self.scenario.continues else "off",
        )
        self.members = [self.fleet.member(endpoint) for endpoint in endpoints]
        for member, engine in zip(self.members, self.engines, strict=True):
            if engine.speeds:
                engine.speeds[self.number] = member.speed
        for place in range(len(self.engines)):
            self.probe(place, 0.0)

    def _column(self, endpoints: Sequence[Endpoint]) -> WorkerColumn | None:
        """As in net/processes/shared_state.py: the column starts at zero, also after a process has
        ended. None without workers."""
        if self._memory is None:
            return None
        table = SharedTable(self._memory, self.scenario.replicas, len(endpoints))
        column = table.column(self.number)
        column.place({endpoint: row for row, endpoint in enumerate(endpoints)})
        return column

    def start(self) -> None:
        """Schedule its periodic work. Replicas are out of step with each other."""
        agenda, phase = self.agenda, (self.number + 1) / self.scenario.replicas
        for seconds, event in ((TICK_SECONDS, self.tick), (SWEEP_SECONDS, self.sweep)):
            agenda.every(seconds, seconds * phase, event)
        if self.scenario.has_workers and self.number:  # only the first worker, the leader, probes
            return
        seconds = probing.SPEED_PROBE_SECONDS
        agenda.every(seconds, seconds * phase, self.probes.sweep)
        rng = Random(f"jitter {self.number}")
        for place in range(len(self.engines)):
            agenda.again(rng, probing.HEALTH_SECONDS * phase, partial(self.probe, place))
            agenda.again(rng, probing.SCRAPE_SECONDS * phase, partial(self.scrape, place))

    def restart(self, now: float) -> None:
        """Lose all connections and everything learned."""
        self.probes.cut(now)
        open_, self._open = list(self._open), {}
        for exchange in open_:
            exchange.cut(now)
        self._make_state()
        for exchange in open_:
            exchange.request.done(exchange.request, now)

    @property
    def leases(self) -> int:
        """Number of leases that have not been released."""
        return self.fleet.ledger.total()

    # Requests.

    def send(self, request: VirtualRequest, now: float) -> None:
        """Accept a request."""
        block_size, has_session = self.engines[0].model.block_size, self._strategy.has_sessions
        facts = facts_of(request, block_size, has_session=has_session)
        record = RequestEnded(str(request.number), facts.path, now)
        record.model, record.stream, record.tokens = facts.model, facts.stream, facts.tokens
        run = RequestRun(self.scheduler, self.observe, record, self._rng)
        exchange = VirtualExchange(self, request, run)
        self._open[exchange] = None
        self.attend(request, now)
        try:
            decision = self.scheduler.decide(facts, now)
            request.is_remote = decision.mode is Mode.REMOTE
            if self.scenario.has_deadlines and self.scenario.slo_ttft is not None:
                check(self.scheduler, facts, decision, self.scenario.slo_ttft, 0.0, now)
            action = run.start(facts, plan_of(facts, decision), now, plan_of)
        except RouterError:
            exchange.finish(now)
        else:
            exchange.perform(action, now)

    def attend(self, request: VirtualRequest, now: float) -> None:
        """Set the current request and time."""
        self.now = now
        self._strategy.asking.request = request

    def observe(self, event: Event) -> None:
        """Handle an event of a run, at the current time."""
        self._observe(event, self.now)

    def _observe(self, event: Event, now: float) -> None:
        self.fleet.observe(event, now)
        if self._memory is not None and (shared := for_workers(event)) is not None:
            self.publish(shared)

    def forget(self, exchange: VirtualExchange) -> None:
        """Remove a request that has ended."""
        self._open.pop(exchange, None)

    def note_choice(self, place: int, request: VirtualRequest) -> None:
        """Count a choice of an excluded engine although another was free and faster."""
        chosen, engine = self.members[place], self.engines[place]
        if chosen.exclusion is None:
            return
        peers = [
            (member, other)
            for member, other in zip(self.members, self.engines, strict=True)
            if member.endpoint.role is chosen.endpoint.role
            and member.health.is_up
            and other.serves(request.model)
        ]
        shut = sum(member.exclusion not in (None, Exclusion.SLOW) for member, _ in peers)
        if shut > self._exclusion_config.max_excluded * len(peers):  # panic: all are used
            return
        output = 1 if chosen.endpoint.role is Role.PREFILL else request.output
        own = engine.seconds(request.prompt, output)
        self.misdirected[place] += any(
            member.exclusion is None
            and FREE_FROM_BIAS * other.seconds(request.prompt, output) < own
            for member, other in peers
        )

    # Periodic work.

    def sweep(self, now: float) -> None:
        """As in net/limits/timers.py: give up engines that have stalled or are silent for too
        long."""
        for exchange in list(self._open):
            exchange.check_idle(now)

    def stop_reading(self, unread: Unread, now: float) -> None:
        """Let clients stop reading for a while."""
        for exchange in self._open:
            if exchange.streams_from(unread.engine) and self._rng.random() < unread.share:
                exchange.stop_reading(now)
                self.agenda.at(now + unread.seconds, exchange.read_on)

    def tick(self, now: float) -> None:
        """Judge engines."""
        self.fleet.tick(now)
        self._board.tick(now)
        if self._memory is not None:
            for event in self._changes.take():
                self.publish(event)

    def scrape(self, place: int, now: float) -> float:
        """Read an engine's gauges. Returns the seconds until the next time."""
        engine, member = self.engines[place], self.members[place]
        if member.health.is_up:
            gauges = engine.gauges if engine.is_up else None
            self._observe(Scraped(member.endpoint, gauges, member.view.in_flight), now)
        return probing.SCRAPE_SECONDS

    def probe(self, place: int, now: float) -> float:
        """Probe an engine's health. Returns the seconds until the next time."""
        engine, member = self.engines[place], self.members[place]
        signal = HealthSignal.OK if engine.is_up else HealthSignal.FAILED
        cards = None
        if engine.is_up and engine.spec.serves:
            cards = tuple({"id": name} for name in engine.spec.serves)
        self._observe(Probed(member.endpoint, signal, cards), now)
        return probing.seconds_to_health_probe(member.health, probing.HEALTH_SECONDS)

    # Other replicas and workers.

    def report(self, now: float) -> PeerReport:
        """The report to siblings about its requests."""
        return PeerReport(self._board.replica, int(1e9 * now), self.fleet.ledger.own())

    def receive(self, report: PeerReport, now: float) -> None:
        """Process a sibling's report about its requests."""
        self._board.receive(report, now)

    def receive_from_worker(self, event: SharedEvent, now: float) -> None:
        """Process an event of another worker."""
        self.fleet.observe_shared(event, now)


class SpeedProbes:
    """The speed probes of one replica, one at a time for each engine.

    One sweep checks all engines, whereas net/background/speed_prober.py has a task for each.
    """

    def __init__(self, replica: Replica, speed_roles: frozenset[Role]) -> None:
        self.count = 0
        self._replica = replica
        self._speed_roles = speed_roles
        self._open: dict[int, Attempt] = {}

    def sweep(self, now: float) -> None:
        """Probe the engines that need it."""
        for place, member in enumerate(self._replica.members):
            if place not in self._open and probing.needs_speed_probe(
                member, self._speed_roles, now
            ):
                self._ask(place, now)

    def on_first(self, attempt: Attempt, now: float) -> None:
        """The first token has arrived."""
        attempt.leg.first_token(now)

    def on_end(self, attempt: Attempt, status: int, now: float) -> None:
        """The probe is complete, or has failed."""
        attempt.leg.end(now)
        self._open.pop(attempt.place, None)

    def cut(self, now: float) -> None:
        """Remove all probes, because their router has died."""
        for probe in list(self._open.values()):
            self._abort(probe, now)

    def _abort(self, probe: Attempt, now: float) -> None:
        if self._open.get(probe.place) is probe:
            self._replica.engines[probe.place].abort(probe)
            self.on_end(probe, ACCEPTED, now)

    def _ask(self, place: int, now: float) -> None:
        replica, member = self._replica, self._replica.members[place]
        work = probing.speed_probe_work(member)
        tokens = probing.speed_probe_tokens(member.endpoint.role)
        probe = Attempt(self, replica.number, place, work, tokens)
        if replica.engines[place].submit(probe, now) != ACCEPTED:
            return
        self.count += 1
        self._open[place] = probe
        probe.leg = probing.speed_probe_leg(member, now)
        replica.agenda.at(now + probing.SPEED_PROBE_TIMEOUT_SECONDS, partial(self._abort, probe))
