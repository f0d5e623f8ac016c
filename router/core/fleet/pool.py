"""The engines of one role, and which of them may take a request now."""

import math
from collections.abc import Iterable, Sequence
from typing import Final

from router.core.candidate import Candidate
from router.core.health import State
from router.core.judge.member import Member
from router.core.judge.pool_judge import PoolJudge
from router.core.judge.verdict import ExclusionConfig
from router.core.prefix.held import Evictions, RecentHolders
from router.core.request_facts import PrefixKeys
from router.core.values import Endpoint, Role

__all__ = ["FEWEST", "SUBSET_SIZE", "Pool"]

SUBSET_SIZE: Final = 32
"""Size of the random subset of a large pool that one request considers. The best of 32 is hardly
worse than the best of a thousand, and the cost does not grow with the pool."""

FEWEST: Final = 8
"""Fewest engines of a subset that may take a request. With fewer, a slow engine would often be the
only one in a subset and get a full share of the requests."""

UP: Final = State.UP


class Pool:
    """The members of one role. Gauges older than `stale_after` seconds are ignored."""

    def __init__(self, role: Role, config: ExclusionConfig, stale_after: float) -> None:
        self.members: tuple[Member, ...] = ()
        """In the order of the roster."""
        self.undrained: tuple[Member, ...] = ()
        """Those that are not drained."""
        self.judge = PoolJudge(role, (), config)
        self.evictions = Evictions()
        self.holders: RecentHolders | None = None
        """If so many engines are in use that each request considers a sample of them: the recent
        holders of prompts, which it considers too. They are kept until only half that many engines
        are left, so that they are not lost when single engines leave and join. (The sample of a
        smaller pool is the whole pool.)"""
        self.kept: dict[str | None, list[Candidate]] = {}
        """Cache of candidates by known model."""
        self._stale_after = stale_after

    def watch(self, members: tuple[Member, ...]) -> None:
        """Set the members."""
        self.members = members
        self.undrained = tuple(member for member in members if not member.is_drained)
        least = SUBSET_SIZE if self.holders is None else SUBSET_SIZE // 2
        if len(self.undrained) <= least:
            self.holders = None
        elif self.holders is None:
            self.holders = RecentHolders()
        self.judge.watch(members)

    def eligible(
        self, model: str | None, exclude: frozenset[Endpoint], now: float, *, moves: bool = False
    ) -> list[Candidate]:
        """The engines that may take a request for `model` now.

        Engines that report to be full are included only if there are no others. Stalled and ejected
        engines are included only then, or in a panic. Silent engines are included only if none is
        up. `moves`: an engine has failed the request, whose number of attempts is limited, so
        engines that were full count as full until they accept a request.
        """
        members, oldest = self.undrained, now - self._stale_after
        skip = not self.judge.is_panic
        return (
            _usable(members, model, exclude, oldest, _free_at(now, moves), skip_ejected=skip)
            or _usable(members, model, exclude, oldest, math.inf, skip_ejected=skip)
            or _usable(members, model, exclude, oldest, math.inf, skip_ejected=False)
            or _usable(
                members, model, exclude, oldest, math.inf, skip_ejected=False, skip_silent=False
            )
        )

    def sample(
        self,
        model: str | None,
        exclude: frozenset[Endpoint],
        now: float,
        draw: float,
        *,
        moves: bool,
    ) -> list[Candidate]:
        """The engines of a random subset that may take the request. `draw`, 0 to 1, selects the
        subset. Empty if there are fewer than `FEWEST`."""
        step = _step(self.undrained)
        subset = self.undrained[int(draw * step) :: step]
        found = self._allowed(subset, model, exclude, now, moves)
        return found if len(found) >= FEWEST else []

    def add_holders(
        self,
        found: list[Candidate],
        holders: Iterable[Member],
        model: str | None,
        exclude: frozenset[Endpoint],
        now: float,
        *,
        moves: bool,
    ) -> None:
        """Add those `holders` of a prompt's beginning that may take the request."""
        more = self._allowed(holders, model, exclude, now, moves)
        found += [view for view in more if view not in found]

    def _allowed(
        self,
        members: Iterable[Member],
        model: str | None,
        exclude: frozenset[Endpoint],
        now: float,
        moves: bool,
    ) -> list[Candidate]:
        oldest, skip = now - self._stale_after, not self.judge.is_panic
        free_at = _free_at(now, moves)
        return _usable(members, model, exclude, oldest, free_at, skip_ejected=skip)

    def note_holder(self, prefix: PrefixKeys, endpoint: Endpoint) -> None:
        """Note that the engine's KV cache will hold this prompt."""
        if self.holders is not None:
            self.holders.note(prefix, endpoint)

    def usable(self) -> int:
        """How many engines may get a request now, regardless of its model."""
        up = [member for member in self.undrained if member.health.is_up]
        free = [member for member in up if not member.is_ejected_or_stalled]
        if up:
            return len(up if self.judge.is_panic else free or up)  # as `eligible` does
        return sum(member.health.is_silent for member in self.undrained)


def part(candidates: Sequence[Candidate], draw: float) -> list[Candidate]:
    """The subset of the candidates that one request considers, selected by `draw`."""
    step = _step(candidates)
    return list(candidates[int(draw * step) :: step])


def _step(items: Sequence[object]) -> int:
    """A subset is every n-th engine, because neighbours may share a rack and be slow together."""
    return max(1, -(-len(items) // SUBSET_SIZE))


def _free_at(now: float, moves: bool) -> float:
    """Engines that are full until later than this time are only used if all are."""
    return -math.inf if moves else now


def _usable(
    members: Iterable[Member],
    model: str | None,
    exclude: frozenset[Endpoint],
    oldest: float,
    free_at: float,
    *,
    skip_ejected: bool,
    skip_silent: bool = True,
) -> list[Candidate]:
    """Those of the members that may take a request. Gauges read before `oldest` are ignored."""
    found = []
    for member in members:
        if (
            (member.health.state is not UP and (skip_silent or not member.health.is_silent))
            or (model is not None and member.models is not None and model not in member.models)
            or (
                skip_ejected  # same as Member.is_ejected_or_stalled
                and (member.verdict.stall.since is not None or member.outlier.until is not None)
            )
            or member.full_until > free_at
            or member.view.endpoint in exclude
        ):
            continue
        if member.scrapes.attempted_at < oldest:
            member.scrapes.expire()
        found.append(member.view)
    return found
