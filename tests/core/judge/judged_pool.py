"""A pool of engines that is judged in virtual time, for tests."""

from router.core.candidate import Candidate
from router.core.fleet.leg_timer import LegTimer
from router.core.health import Health, State
from router.core.judge.member import Member
from router.core.judge.pool_judge import PoolJudge
from router.core.judge.verdict import Exclusion, ExclusionConfig
from router.core.speed.tuning import TICK_SECONDS
from router.core.values import Endpoint, Role

UP = Health(State.UP)


class Pool:
    """Engines in a pool that is judged, each with its seconds between tokens (None: silent)."""

    def __init__(
        self,
        *gaps: float | None,
        role: Role = Role.DECODE,
        exclusion_config: ExclusionConfig | None = None,
    ):
        self.gaps = list(gaps)
        self.members = [
            Member(Candidate(Endpoint(f"http://e{number}", role), number), UP)
            for number in range(len(gaps))
        ]
        self.judge = PoolJudge(role, self.members, exclusion_config or ExclusionConfig())
        self.now = 0.0
        self._due = [gap or 0.0 for gap in gaps]

    def streams(self, count: int = 8) -> list[LegTimer]:
        """Open so many on every engine, each past its first token."""
        legs = []
        for member in self.members:
            for _ in range(count):
                leg = LegTimer(member.speed.counts, None, 10, self.now, tracks_first_token=True)
                leg.first_token(self.now)
                legs.append(leg)
        return legs

    def run(self, seconds: float) -> None:
        """Let time pass."""
        for _ in range(round(seconds / TICK_SECONDS)):
            self.now += TICK_SECONDS
            for place, member in enumerate(self.members):
                gap = self.gaps[place]
                while gap is not None and self._due[place] <= self.now + 1e-9:
                    member.speed.counts.counter.tokens += member.speed.counts.streams
                    self._due[place] += gap
            self.judge.tick(self.now)

    def set(self, place: int, gap: float | None) -> None:
        """Change an engine's gap from now on."""
        self.gaps[place] = gap
        self._due[place] = self.now + (gap or 0.0)

    @property
    def exclusions(self) -> list[Exclusion | None]:
        """Each engine's exclusion."""
        return [member.exclusion for member in self.members]


def fail(pool: Pool, place: int, times: int) -> None:
    """Report so many failures in a row of one engine."""
    for _ in range(times):
        pool.judge.outliers.answered(pool.members[place], pool.now, is_good=False)
