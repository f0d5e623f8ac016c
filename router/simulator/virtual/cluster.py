"""Builds a cluster from a scenario and lets it run to its end."""

from random import Random

from router.core.care import Care
from router.core.pace import TICK_SECONDS
from router.simulator.virtual.agenda import Agenda, Event
from router.simulator.virtual.clients import Clients
from router.simulator.virtual.engine import Engine
from router.simulator.virtual.policies import make_policy
from router.simulator.virtual.replica import Replica
from router.simulator.virtual.results import Result, Sample, result_of
from router.simulator.virtual.speed_probes import INTERVAL_SECONDS, NeedsProbe, SpeedProbes
from router.simulator.virtual.values import Change, Freeze, Restart, Scenario, Speed

__all__ = ["simulate"]

SCRAPE_SECONDS = 1.0
HEALTH_SECONDS = 5.0
ABSENT_SECONDS = 1.0
SWEEP_SECONDS = 1.0
"""The defaults of router/settings.py, of router/net/prober.py and of router/net/silence.py."""

HORIZON_SECONDS = 100_000.0
"""Virtual; what is not over by then never will be."""


def simulate(
    scenario: Scenario,
    policy: str,
    *,
    seed: int,
    needs_probe: NeedsProbe,
    care: Care | None = None,
) -> Result:
    """Run a scenario under a policy; the same arguments give the same result.

    `needs_probe` is router/net/speed_prober.py's. Raises KeyError for an unknown policy.
    """
    agenda = Agenda()
    engines = [
        Engine(scenario.model, agenda, Random(f"engine {seed} {n}"), scenario.replicas)
        for n in range(scenario.engines)
    ]
    chosen = make_policy(policy, engines)
    replicas = [
        Replica(n, engines, chosen, Random(f"replica {seed} {n}"), care or Care())
        for n in range(scenario.replicas)
    ]
    for place, engine in enumerate(engines):
        engine.paces = [replica.pool[place].pace for replica in replicas]
    clients = Clients(scenario.workload, replicas, agenda, Random(f"clients {seed}"))
    for change in scenario.changes:
        agenda.at(change.at, _event(change, engines, agenda))
    probes = [_watch(replica, agenda, needs_probe, scenario.replicas) for replica in replicas]
    samples: list[Sample] = []

    def sample(now: float) -> None:
        loads = tuple(engine.load for engine in engines)
        samples.append(Sample(now, len(clients.ended), loads))

    agenda.every(TICK_SECONDS, TICK_SECONDS, sample)
    clients.start()
    agenda.run_while(clients.is_going_on, HORIZON_SECONDS)
    return result_of(
        (scenario.name, policy, seed),
        clients.ended,
        samples,
        probes=sum(probe.count for probe in probes),
        leases_left=sum(replica.fleet.ledger.total() for replica in replicas),
        most_running=max(engine.most_running for engine in engines),
        events=agenda.events,
    )


def _watch(replica: Replica, agenda: Agenda, needs_probe: NeedsProbe, replicas: int) -> SpeedProbes:
    """Everything that a router does again and again; replicas are out of step with each other."""
    phase = replica.number / replicas
    probes = SpeedProbes(replica, agenda, needs_probe)
    for seconds, event in (
        (TICK_SECONDS, replica.fleet.tick),
        (SCRAPE_SECONDS, replica.scrape),
        (HEALTH_SECONDS, replica.see_health),
        (ABSENT_SECONDS, replica.see_health_of_absent),
        (SWEEP_SECONDS, replica.leave_stalled),
        (INTERVAL_SECONDS, probes.sweep),
    ):
        agenda.every(seconds, seconds * (phase + 1 / replicas), event)
    return probes


def _event(change: Change, engines: list[Engine], agenda: Agenda) -> Event:
    engine = engines[change.engine]

    def event(now: float) -> None:
        match change:
            case Speed():
                engine.factor = change.factor
            case Freeze():
                engine.frozen_until = now + change.seconds
            case Restart():
                engine.kill(now)
                agenda.at(now + change.seconds, lambda _: engine.start())

    return event
