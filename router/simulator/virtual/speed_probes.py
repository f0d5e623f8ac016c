"""The router's own tiny generations on engines that get no users' requests, in virtual time.

Mirrors router/net/speed_prober.py: of how many tokens, how often, how long it is waited for; who
needs one is asked of that module's own function. One sweep per second looks at all engines, where
the real prober has a task for each.
"""

from collections.abc import Callable

from router.core.member import Member
from router.core.pace import Leg
from router.simulator.virtual.agenda import Agenda
from router.simulator.virtual.attempt import Answer, Attempt
from router.simulator.virtual.replica import Replica

__all__ = ["INTERVAL_SECONDS", "NeedsProbe", "SpeedProbes"]

NeedsProbe = Callable[[Member], bool]
"""Whether nothing else would find out how fast an engine is now."""


INTERVAL_SECONDS = 1.0
TOKENS = 8
PROMPT_TOKENS = 3
PATIENCE_SECONDS = 10.0


class SpeedProbes:
    """The probes of one replica, one at a time for each engine."""

    def __init__(self, replica: Replica, agenda: Agenda, needs_probe: NeedsProbe) -> None:
        self.count = 0
        self._needs_probe = needs_probe
        self._replica = replica
        self._agenda = agenda
        self._open: dict[int, _Probe] = {}

    def sweep(self, now: float) -> None:
        """Ask those that need it."""
        for place, member in enumerate(self._replica.pool):
            if place not in self._open and self._needs_probe(member):
                self._ask(place, member, now)

    def forget(self, probe: "_Probe", now: float) -> None:
        """A probe is over, however it ended."""
        probe.leg.end(now)
        self._open.pop(probe.place, None)

    def _ask(self, place: int, member: Member, now: float) -> None:
        probe = _Probe(self, self._replica.number, place)
        engine = self._replica.engines[place]
        if engine.submit(probe, now) is not Answer.ACCEPTED:
            return
        self.count += 1
        self._open[place] = probe
        probe.leg = Leg(member.pace, None, PROMPT_TOKENS, now, is_heard=True)

        def give_up(then: float) -> None:
            if self._open.get(place) is probe:
                engine.abort(probe)
                self.forget(probe, then)

        self._agenda.at(now + PATIENCE_SECONDS, give_up)


class _Probe(Attempt):
    """One probe at its engine."""

    __slots__ = ("place", "probes")

    def __init__(self, probes: SpeedProbes, replica: int, place: int) -> None:
        super().__init__(replica, PROMPT_TOKENS, TOKENS)
        self.probes = probes
        self.place = place

    def on_first(self, now: float) -> None:
        """The clock starts."""
        self.leg.first(now)

    def on_last(self, now: float) -> None:
        """Measured."""
        self.probes.forget(self, now)

    def on_lost(self, now: float) -> None:
        """Not measured."""
        self.probes.forget(self, now)
