"""Speed probes in virtual time: tiny generations on engines that get no requests of users.

router/core/fleet/probing.py decides which engines are probed, how and for how long. One sweep
checks all engines, whereas net/background/speed_prober.py has a task for each.
"""

from router.core.fleet import probing
from router.core.values import Role
from router.simulator.virtual.agenda import Agenda
from router.simulator.virtual.attempt import Answer, Attempt
from router.simulator.virtual.routing.replica import Replica


class SpeedProbes:
    """The probes of one replica, one at a time for each engine."""

    def __init__(self, replica: Replica, agenda: Agenda, speed_roles: frozenset[Role]) -> None:
        self.count = 0
        self._speed_roles = speed_roles
        self.replica = replica
        self._agenda = agenda
        self._open: dict[int, Attempt] = {}

    def sweep(self, now: float) -> None:
        """Probe the engines that need it."""
        for place, member in enumerate(self.replica.members):
            if place not in self._open and probing.needs_speed_probe(
                member, self._speed_roles, now
            ):
                self._ask(place, now)

    def forget(self, attempt: Attempt, now: float) -> None:
        """Remove a probe that has ended."""
        attempt.leg.end(now)
        self._open.pop(attempt.place, None)

    def on_first(self, attempt: Attempt, now: float) -> None:
        """The first token has arrived."""
        attempt.leg.first_token(now)

    def on_last(self, attempt: Attempt, now: float) -> None:
        """The probe is complete."""
        self.forget(attempt, now)

    def on_lost(self, attempt: Attempt, now: float) -> None:
        """The probe failed."""
        self.forget(attempt, now)

    def on_error(self, attempt: Attempt, status: int, now: float) -> None:
        """The probe failed."""
        self.forget(attempt, now)

    def restart(self, now: float) -> None:
        """Remove all probes, because their router has died."""
        for place, probe in list(self._open.items()):
            self.replica.engines[place].abort(probe)
            self.forget(probe, now)

    def _ask(self, place: int, now: float) -> None:
        engine, member = self.replica.engines[place], self.replica.members[place]
        work = probing.speed_probe_work(member)
        tokens = probing.speed_probe_tokens(engine.spec.role)
        probe = Attempt(self, self.replica.number, place, work, tokens)
        if engine.submit(probe, now) is not Answer.ACCEPTED:
            return
        self.count += 1
        self._open[place] = probe
        probe.leg = probing.speed_probe_leg(member, now)

        def give_up(then: float) -> None:
            if self._open.get(place) is probe:
                engine.abort(probe)
                self.forget(probe, then)

        self._agenda.at(now + probing.SPEED_PROBE_TIMEOUT_SECONDS, give_up)
