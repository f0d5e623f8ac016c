"""The router's own tiny generations on engines that get no users' requests, in virtual time.

Who is asked, for what and how long is decided by router/core/probing.py. One sweep looks at all
engines, where net/speed_prober.py has a task for each.
"""

from router.core import probing
from router.core.leg_timer import LegTimer
from router.core.values import Role
from router.simulator.virtual.agenda import Agenda
from router.simulator.virtual.attempt import Answer, Attempt
from router.simulator.virtual.replica import Replica

__all__ = ["SpeedProbes"]


class SpeedProbes:
    """The probes of one replica, one at a time for each engine."""

    def __init__(self, replica: Replica, agenda: Agenda, speed_roles: frozenset[Role]) -> None:
        self.count = 0
        self._speed_roles = speed_roles
        self.replica = replica
        self._agenda = agenda
        self._open: dict[int, _Probe] = {}

    def sweep(self, now: float) -> None:
        """Ask those that need it."""
        for place, member in enumerate(self.replica.members):
            if place not in self._open and probing.needs_speed_probe(member, self._speed_roles):
                self._ask(place, now)

    def forget(self, probe: "_Probe", now: float) -> None:
        """A probe is over, however it ended."""
        probe.leg.end(now)
        self._open.pop(probe.place, None)

    def restart(self, now: float) -> None:
        """Their router died."""
        for place, probe in list(self._open.items()):
            self.replica.engines[place].abort(probe)
            self.forget(probe, now)

    def _ask(self, place: int, now: float) -> None:
        probe = _Probe(self, self.replica.number, place)
        engine, member = self.replica.engines[place], self.replica.members[place]
        if engine.submit(probe, now) is not Answer.ACCEPTED:
            return
        self.count += 1
        self._open[place] = probe
        work = probing.SPEED_PROBE_PROMPT_TOKENS
        probe.leg = LegTimer(member.speed, None, work, now, tracks_first_token=True)

        def give_up(then: float) -> None:
            if self._open.get(place) is probe:
                engine.abort(probe)
                self.forget(probe, then)

        self._agenda.at(now + probing.SPEED_PROBE_TIMEOUT_SECONDS, give_up)


class _Probe(Attempt):
    """One probe at its engine."""

    __slots__ = ("place", "probes")

    def __init__(self, probes: SpeedProbes, replica: int, place: int) -> None:
        role = probes.replica.engines[place].spec.role
        tokens = probing.speed_probe_tokens(role)
        super().__init__(replica, probing.SPEED_PROBE_PROMPT_TOKENS, tokens)
        self.probes = probes
        self.place = place

    def on_first(self, now: float) -> None:
        """The clock starts."""
        self.leg.first_token(now)

    def on_last(self, now: float) -> None:
        """Measured."""
        self.probes.forget(self, now)

    def on_lost(self, now: float) -> None:
        """Not measured."""
        self.probes.forget(self, now)

    def on_error(self, _status: int, now: float) -> None:
        """Not measured."""
        self.probes.forget(self, now)
