"""Builds a cluster from a scenario and runs it to its end; measures what a choice costs."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from random import Random

from router.core.events import SharedEvent
from router.core.judge.verdict import ExclusionConfig
from router.core.replicas import SAME_SECONDS, seconds_between_reports
from router.core.shared_table import SharedTable
from router.core.speed.tuning import TICK_SECONDS
from router.core.values import Role
from router.simulator.virtual.agenda import Agenda
from router.simulator.virtual.clients import Clients
from router.simulator.virtual.engine import VirtualEngine
from router.simulator.virtual.policies import make_strategy
from router.simulator.virtual.replica import Replica
from router.simulator.virtual.requests import VirtualRequest, facts_of
from router.simulator.virtual.results import Result, Sample, Totals, result_of
from router.simulator.virtual.values import (
    Change,
    EngineModel,
    FaultRates,
    Freeze,
    Lengths,
    Restart,
    RouterRestart,
    Scenario,
    Speed,
    Unread,
    Workload,
    threshold_name,
)

__all__ = ["selection_microseconds", "share", "simulate"]

PEER_SECONDS = 0.001
"""Delay in seconds of messages between replicas or workers."""

LOOKS_PER_SECOND = 20
"""Checks of queues per second; a few steps pass in between."""

HORIZON_SECONDS = 100_000.0
"""Virtual seconds after which a run counts as endless."""


def simulate(
    scenario: Scenario, policy: str, *, seed: int, exclusion_config: ExclusionConfig | None = None
) -> Result:
    """Run a scenario under a policy. The same arguments give the same result.

    Raises KeyError for an unknown policy.
    """
    return _Cluster(scenario, policy, seed, exclusion_config or ExclusionConfig()).run()


class _Cluster:
    """The engines, routers and clients of one run."""

    def __init__(
        self, scenario: Scenario, policy: str, seed: int, exclusion_config: ExclusionConfig
    ) -> None:
        self._scenario, self._policy, self._seed = scenario, policy, seed
        self._agenda = agenda = Agenda()
        self._engines = engines = [
            VirtualEngine(spec, agenda, Random(f"engine {seed} {n}"), scenario.replicas)
            for n, spec in enumerate(scenario.pool)
        ]
        size = SharedTable.size(scenario.replicas, scenario.engines)
        memory = memoryview(bytearray(size)) if scenario.has_workers else None
        strategy = make_strategy(policy, engines)
        self._replicas = [
            Replica(
                n,
                engines,
                scenario,
                strategy,
                Random(f"replica {seed} {n}"),
                exclusion_config,
                agenda,
                memory,
            )
            for n in range(scenario.replicas)
        ]
        for place, engine in enumerate(engines):
            engine.speeds = [replica.members[place].speed for replica in self._replicas]
        self._clients = Clients(
            scenario.workload,
            self._replicas,
            agenda,
            Random(f"clients {seed}"),
            scenario.sessions,
        )
        self._samples: list[Sample] = []

    def run(self) -> Result:
        """Run to the end of all requests. Raises RuntimeError if there is none."""
        scenario, agenda, replicas = self._scenario, self._agenda, self._replicas
        for replica in replicas:
            replica.start()
        if scenario.has_peers:
            _connect(replicas, agenda, self._seed)
        if scenario.has_workers:
            share(replicas, agenda)
        for change in scenario.changes:
            agenda.at(change.at, partial(self._happen, change))
        agenda.every(TICK_SECONDS, TICK_SECONDS, self._sample)
        agenda.every(1 / LOOKS_PER_SECOND, 1 / LOOKS_PER_SECOND, self._see_queues)
        self._clients.start()
        agenda.run_while(self._clients.is_going_on, HORIZON_SECONDS)
        return result_of(
            (scenario.name, self._policy, self._seed),
            self._clients.ended,
            self._samples,
            threshold=threshold_name(scenario.threshold),
            continues=scenario.continues,
            slo_ttft=scenario.slo_ttft,
            has_deadlines=scenario.has_deadlines,
            has_zones=any(spec.zone for spec in scenario.pool),
            probes=sum(replica.probes.count for replica in replicas),
            # Each worker sees the leases of all workers.
            leases_left=sum(
                each.leases for each in replicas[: 1 if scenario.has_workers else None]
            ),
            most_running=max(engine.most_running for engine in self._engines),
            events=agenda.events,
            totals=[self._totals(place, engine) for place, engine in enumerate(self._engines)],
        )

    def _happen(self, change: Change, now: float) -> None:
        """Disturb the cluster."""
        match change:
            case Speed():
                self._engines[change.engine].batch.factor = change.factor
            case Freeze():
                self._engines[change.engine].frozen_until = now + change.seconds
            case FaultRates():
                self._engines[change.engine].faults = change
            case Unread():
                for replica in self._replicas:
                    replica.stop_reading(change, now)
            case Restart():
                engine = self._engines[change.engine]
                engine.kill(now)
                self._agenda.at(now + change.seconds, lambda _: engine.start(change.max_num_seqs))
            case RouterRestart():
                self._replicas[change.replica].restart(now)

    # What is measured.

    def _sample(self, now: float) -> None:
        engines, in_vain = self._engines, {engine for engine, _ in self._queue_in_vain()}
        sample = Sample(
            now,
            len(self._clients.ended),
            tuple(engine.load for engine in engines),
            tuple(engine.is_fit for engine in engines),
            tuple(engine in in_vain for engine in engines),
            tuple(engine.model.max_num_seqs for engine in engines),
        )
        self._samples.append(sample)

    def _see_queues(self, _now: float) -> None:
        """Count the checks at which requests wait in vain, as whole numbers, whose sums are
        exact."""
        for engine, model in self._queue_in_vain():
            engine.waits.checks[model] += 1

    def _queue_in_vain(self) -> Iterator[tuple[VirtualEngine, str | None]]:
        """Yields engines and models whose requests wait for a slot while another engine that would
        serve them has a free one: one that is not faulty and not slower, so that they would end
        earlier."""
        queues = [one for one in self._engines if one.batch.waiting]
        if not queues:  # at most of twenty looks per second
            return
        free = [one for one in self._engines if one.has_free_slot and not one.is_frozen]
        for engine in queues if free else ():
            if engine.is_full or engine.is_frozen:
                for model in {attempt.model for attempt in engine.batch.waiting}:
                    if any(
                        one.spec.role is engine.spec.role
                        and one.serves(model)
                        and not one.is_faulty_for(model)
                        and one.step_seconds <= engine.step_seconds
                        for one in free
                    ):
                        yield engine, model

    def _totals(self, place: int, engine: VirtualEngine) -> Totals:
        spec = engine.spec
        return Totals(
            role=spec.role.value,
            group=replace(spec, model=replace(spec.model, max_num_seqs=0)),
            served=sum(replica.served[place] for replica in self._replicas),
            longest_wait=engine.waits.longest(engine.batch.waiting) / LOOKS_PER_SECOND,
            misdirected=sum(replica.misdirected[place] for replica in self._replicas),
            prefix_queries=engine.kv.queries,
            prefix_hits=engine.kv.hits,
        )


# Messages between routers.


def share(workers: Sequence[Replica], agenda: Agenda) -> None:
    """Connect the workers of one router: they send each other what is not in their shared memory,
    like `WorkerBus` in net/processes/shared_state.py."""

    def publish(others: Sequence[Replica], event: SharedEvent) -> None:
        for other in others:
            agenda.at(agenda.now + PEER_SECONDS, partial(other.receive_from_worker, event))

    for worker in workers:
        worker.publish = partial(publish, [each for each in workers if each is not worker])


def _connect(replicas: Sequence[Replica], agenda: Agenda, seed: int) -> None:
    """Connect replicas: they send each other their requests and prompts, like `net/processes`."""
    for replica in replicas:
        siblings = [each for each in replicas if each is not replica]
        reporter = _LoadReporter(replica, siblings, agenda)
        replica.on_change = reporter.on_change
        rng = Random(f"peers {seed} {replica.number}")
        agenda.again(rng, TICK_SECONDS, partial(_send_prompts, replica, siblings, agenda))
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
            self._agenda.at(max(self._agenda.now, self._free_at), self._send)

    def keep_alive(self, _now: float) -> None:
        """Send although nothing has changed, so that siblings do not consider it gone."""
        self.on_change()

    def _send(self, now: float) -> None:
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


# What a choice costs.

IN_FLIGHT = 32
"""Requests in flight on each engine meanwhile."""

ROUNDS = 5
"""Rounds, of which the best counts: a busy machine only adds time."""


def selection_microseconds(
    engines: int, policy: str, *, slow: int = 0, choices: int = 2000
) -> float:
    """CPU microseconds of one choice and its release. `slow`: number of engines that are known to
    be 8x slow.

    Raises KeyError for an unknown policy.
    """
    agenda, rng = Agenda(), Random(0)
    modelled = [VirtualEngine(EngineModel(), agenda, rng, 1) for _ in range(engines)]
    scenario = Scenario("cost", engines, EngineModel(), Workload(1, 1, Lengths(1), Lengths(1)))
    strategy = make_strategy(policy, modelled)
    replica = Replica(0, modelled, scenario, strategy, rng, ExclusionConfig(), agenda)
    request = VirtualRequest(0, 0, 128, 1, 0.0, lambda *_: None)
    scheduler, facts = replica.scheduler, facts_of(request, 0)
    for member in replica.members[:slow]:
        member.view.slowdown = 8.0
    held = [
        scheduler.lease(Role.DECODE, facts_of(request, 0), frozenset(), 0.0)
        for _ in range(IN_FLIGHT * engines)
    ]
    best = float("inf")
    for _ in range(ROUNDS):
        before = time.process_time()
        for _ in range(choices):
            scheduler.lease(Role.DECODE, facts, frozenset(), 0.0).release()
        best = min(best, time.process_time() - before)
    for lease in held:
        lease.release()
    return best / choices * 1e6
