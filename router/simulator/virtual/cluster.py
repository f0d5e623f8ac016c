"""Builds a cluster from a scenario and runs it to its end."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from random import Random

from router.core.events import SharedEvent
from router.core.fleet import probing
from router.core.fleet.pool_monitor import ExclusionConfig
from router.core.fleet.probing import JITTER
from router.core.replicas import SAME_SECONDS, seconds_between_reports
from router.core.shared_table import SharedTable
from router.core.speed.speed_estimator import TICK_SECONDS
from router.core.values import Role
from router.simulator.virtual.agenda import Agenda, Event
from router.simulator.virtual.clients import Clients
from router.simulator.virtual.engine import Engine
from router.simulator.virtual.reporting.results import Result, Sample, Totals, result_of
from router.simulator.virtual.routing.policies import Asking, cached_roles, make_policy
from router.simulator.virtual.routing.replica import Replica
from router.simulator.virtual.routing.speed_probes import SpeedProbes
from router.simulator.virtual.values import (
    Change,
    Faults,
    Freeze,
    Restart,
    RouterRestart,
    Scenario,
    Speed,
    Unread,
    threshold_name,
)

PEER_SECONDS = 0.001
"""Delay in seconds of messages between replicas or workers."""

SWEEP_SECONDS = 1.0
"""Seconds between checks of waiting requests, as in router/net/limits/timers.py."""

LOOKS_PER_SECOND = 20
"""Checks of queues per second; a few steps pass in between."""

QUEUE_SECONDS = 1 / LOOKS_PER_SECOND

HORIZON_SECONDS = 100_000.0
"""Virtual seconds after which a run counts as endless."""


def simulate(
    scenario: Scenario, policy: str, *, seed: int, exclusion_config: ExclusionConfig | None = None
) -> Result:
    """Run a scenario under a policy. The same arguments give the same result.

    Raises KeyError for an unknown policy.
    """
    agenda = Agenda()
    engines = [
        Engine(spec, agenda, Random(f"engine {seed} {n}"), scenario.replicas)
        for n, spec in enumerate(scenario.pool)
    ]
    size = SharedTable.size(scenario.replicas, scenario.engines)
    memory = memoryview(bytearray(size)) if scenario.has_workers else None
    asking = Asking()
    policies = dict.fromkeys(Role, make_policy(policy, engines, asking))
    speed_roles = probing.roles_that_use_speed(policies)
    exclusion = replace(exclusion_config or ExclusionConfig(), speed_roles=speed_roles)
    replicas = [
        Replica(
            n,
            engines,
            scenario,
            policies,
            Random(f"replica {seed} {n}"),
            exclusion,
            asking,
            cached_roles(policy),
            agenda,
            memory,
        )
        for n in range(scenario.replicas)
    ]
    for place, engine in enumerate(engines):
        engine.speeds = [replica.members[place].speed for replica in replicas]
    rng = Random(f"clients {seed}")
    clients = Clients(scenario.workload, replicas, agenda, rng, scenario.sessions)
    probes = [_watch(replica, agenda, speed_roles, scenario.replicas) for replica in replicas]
    if scenario.has_peers:
        _connect(replicas, agenda, seed)
    if scenario.has_workers:
        share(replicas, agenda)
    for change in scenario.changes:
        agenda.at(change.at, _event(change, engines, replicas, probes, agenda))
    samples: list[Sample] = []
    agenda.every(
        TICK_SECONDS, TICK_SECONDS, lambda now: samples.append(_sample(now, engines, clients))
    )
    agenda.every(QUEUE_SECONDS, QUEUE_SECONDS, lambda _: _see_queues(engines))
    clients.start()
    agenda.run_while(clients.is_going_on, HORIZON_SECONDS)
    return result_of(
        (scenario.name, policy, seed),
        clients.ended,
        samples,
        threshold=threshold_name(scenario.threshold),
        probes=sum(probe.count for probe in probes),
        # Each worker sees the leases of all workers.
        leases_left=sum(replica.leases for replica in replicas[: 1 if memory else None]),
        most_running=max(engine.most_running for engine in engines),
        events=agenda.events,
        totals=[_totals(place, engine, replicas) for place, engine in enumerate(engines)],
    )


def _sample(now: float, engines: Sequence[Engine], clients: Clients) -> Sample:
    in_vain = {engine for engine, _ in _queue_in_vain(engines)}
    return Sample(
        now,
        len(clients.ended),
        tuple(engine.load for engine in engines),
        tuple(engine.is_fit for engine in engines),
        tuple(engine in in_vain for engine in engines),
        tuple(engine.model.max_num_seqs for engine in engines),
    )


def _totals(place: int, engine: Engine, replicas: Sequence[Replica]) -> Totals:
    spec = engine.spec
    return Totals(
        role=spec.role.value,
        group=replace(spec, model=replace(spec.model, max_num_seqs=0)),
        served=sum(replica.served[place] for replica in replicas),
        longest_wait=engine.longest_wait / LOOKS_PER_SECOND,
        misdirected=sum(replica.misdirected[place] for replica in replicas),
        prefix_queries=engine.kv.queries,
        prefix_hits=engine.kv.hits,
    )


def _queue_in_vain(engines: Sequence[Engine]) -> Iterator[tuple[Engine, str | None]]:
    """Yields engines and models whose requests wait for a slot while another engine that would
    serve them has a free one: one that is not faulty and not slower, so that they would end
    earlier."""
    free = [one for one in engines if one.has_free_slot and not one.is_frozen]
    for engine in engines if free else ():
        if engine.is_full or engine.is_frozen:
            for model in engine.waiting_models:
                if any(
                    one.spec.role is engine.spec.role
                    and one.serves(model)
                    and not one.is_faulty_for(model)
                    and one.step_seconds <= engine.step_seconds
                    for one in free
                ):
                    yield engine, model


def _see_queues(engines: Sequence[Engine]) -> None:
    """Count the checks at which requests wait in vain, as whole numbers, whose sums are exact."""
    for engine, model in _queue_in_vain(engines):
        engine.free_elsewhere[model] += 1


def _watch(
    replica: Replica, agenda: Agenda, speed_roles: frozenset[Role], replicas: int
) -> SpeedProbes:
    """Schedule a router's periodic work. Replicas are out of step with each other."""
    phase = (replica.number + 1) / replicas
    probes = SpeedProbes(replica, agenda, speed_roles)
    for seconds, event in ((TICK_SECONDS, replica.tick), (SWEEP_SECONDS, replica.sweep)):
        agenda.every(seconds, seconds * phase, event)
    if replica.scenario.has_workers and replica.number:  # only the first worker, the leader, probes
        return probes
    agenda.every(probing.SPEED_PROBE_SECONDS, probing.SPEED_PROBE_SECONDS * phase, probes.sweep)
    rng = Random(f"jitter {replica.number}")
    for place in range(len(replica.engines)):
        _again(agenda, rng, probing.HEALTH_SECONDS * phase, partial(_probe, replica, place))
        _again(agenda, rng, probing.SCRAPE_SECONDS * phase, partial(_scrape, replica, place))
    return probes


def share(workers: Sequence[Replica], agenda: Agenda) -> None:
    """Connect the workers of one router: they send each other what is not in their shared memory,
    like `WorkerBus` in net/processes/shared_state.py."""

    def tell(others: Sequence[Replica], event: SharedEvent) -> None:
        for other in others:
            agenda.at(agenda.now + PEER_SECONDS, partial(other.receive_from_worker, event))

    for worker in workers:
        worker.tell = partial(tell, [each for each in workers if each is not worker])


def _connect(replicas: Sequence[Replica], agenda: Agenda, seed: int) -> None:
    """Connect replicas: they send each other their requests and prompts, like `net/processes`."""
    for replica in replicas:
        siblings = [each for each in replicas if each is not replica]
        reporter = _LoadReporter(replica, siblings, agenda)
        replica.on_change = reporter.on_change
        rng = Random(f"peers {seed} {replica.number}")
        _again(agenda, rng, TICK_SECONDS, partial(_send_prompts, replica, siblings, agenda))
        agenda.every(SAME_SECONDS, SAME_SECONDS, reporter.keep_alive)


class _LoadReporter:
    """Sends a replica's requests to its siblings when they change, with a limited rate."""

    def __init__(self, replica: Replica, siblings: Sequence[Replica], agenda: Agenda) -> None:
        self._replica = replica
        self._siblings = siblings
        self._agenda = agenda
        self._free_at = 0.0
        self._is_due = False

    def on_change(self) -> None:
        """Send now, or as soon as the rate allows."""
        if not self._is_due:
            self._is_due = True
            self._agenda.at(max(self._agenda.now, self._free_at), self._tell)

    def keep_alive(self, _now: float) -> None:
        """Send although nothing has changed, so that siblings do not consider it gone."""
        self.on_change()

    def _tell(self, now: float) -> None:
        report = self._replica.report(now)
        self._is_due, self._free_at = False, now + seconds_between_reports(len(report.loads))
        for sibling in self._siblings:
            self._agenda.at(now + PEER_SECONDS, partial(sibling.receive, report))


def _send_prompts(
    replica: Replica, siblings: Sequence[Replica], agenda: Agenda, now: float
) -> float:
    for held in replica.fleet.held_prefixes():
        for sibling in siblings:
            agenda.at(now + PEER_SECONDS, partial(sibling.fleet.observe_shared, held))
    return TICK_SECONDS


def _again(agenda: Agenda, rng: Random, first: float, event: Callable[[float], float]) -> None:
    """Repeat an event, each time after the seconds that it returns, with some jitter."""

    def again(now: float) -> None:
        agenda.at(now + event(now) * rng.uniform(1 - JITTER, 1 + JITTER), again)

    agenda.at(first, again)


def _probe(replica: Replica, place: int, now: float) -> float:
    health = replica.probe(place, now).health
    return probing.seconds_to_health_probe(health, probing.HEALTH_SECONDS)


def _scrape(replica: Replica, place: int, now: float) -> float:
    replica.scrape(place, now)
    return probing.SCRAPE_SECONDS


def _event(
    change: Change,
    engines: Sequence[Engine],
    replicas: Sequence[Replica],
    probes: Sequence[SpeedProbes],
    agenda: Agenda,
) -> Event:
    def event(now: float) -> None:
        match change:
            case Speed():
                engines[change.engine].batch.factor = change.factor
            case Freeze():
                engines[change.engine].frozen_until = now + change.seconds
            case Faults():
                engines[change.engine].faults = change
            case Unread():
                for replica in replicas:
                    replica.stop_reading(change, now)
            case Restart():
                engine = engines[change.engine]
                engine.kill(now)
                agenda.at(now + change.seconds, lambda _: engine.start(change.max_num_seqs))
            case RouterRestart():
                probes[change.replica].restart(now)
                replicas[change.replica].restart(now)

    return event
