"""Selects the engines of a pool that may take a request now."""

import math
from collections.abc import Iterable, Sequence
from typing import Final

from router.core.candidate import Candidate
from router.core.fleet.member import Member
from router.core.health import State
from router.core.values import Endpoint

__all__ = ["FEWEST", "SUBSET_SIZE", "add_holders", "eligible", "part", "sample"]

SUBSET_SIZE: Final = 32
"""Size of the random subset of a large pool that one request considers. The best of 32 is hardly
worse than the best of a thousand, and the cost does not grow with the pool."""

FEWEST: Final = 8
"""Fewest engines of a subset that may take a request. With fewer, a slow engine would often be the
only one in a subset and get a full share of the requests."""

UP: Final = State.UP


def eligible(
    pool: Sequence[Member],
    model: str | None,
    exclude: frozenset[Endpoint],
    oldest: float,
    free_at: float,
    *,
    is_panic: bool,
) -> list[Candidate]:
    """The members that may take a request for `model`. Gauges read before `oldest` are ignored.

    Engines that report to be full until later than `free_at` are included only if there are no
    others. Stalled and ejected engines are included only then, or in a panic. Silent engines are
    included only if none is up.
    """
    found = _eligible(pool, model, exclude, oldest, free_at, skip_blocked=not is_panic)
    return (
        found
        or _eligible(pool, model, exclude, oldest, math.inf, skip_blocked=not is_panic)
        or _eligible(pool, model, exclude, oldest, math.inf, skip_blocked=False)
        or _eligible(pool, model, exclude, oldest, math.inf, skip_blocked=False, skip_silent=False)
    )


def sample(
    pool: Sequence[Member],
    model: str | None,
    exclude: frozenset[Endpoint],
    oldest: float,
    free_at: float,
    draw: float,
    *,
    is_panic: bool,
) -> list[Candidate]:
    """The engines of a random subset of a large pool that may take the request. `draw`, 0 to 1,
    selects the subset."""
    step = _step(pool)
    subset = pool[int(draw * step) :: step]
    return _eligible(subset, model, exclude, oldest, free_at, skip_blocked=not is_panic)


def part(candidates: Sequence[Candidate], draw: float) -> list[Candidate]:
    """The subset of the candidates that one request considers, selected by `draw`."""
    step = _step(candidates)
    return list(candidates[int(draw * step) :: step])


def add_holders(
    found: list[Candidate],
    holders: Iterable[Member],
    model: str | None,
    exclude: frozenset[Endpoint],
    oldest: float,
    free_at: float,
    *,
    is_panic: bool,
) -> None:
    """Add those `holders` of a prompt's beginning that may take the request."""
    more = _eligible(holders, model, exclude, oldest, free_at, skip_blocked=not is_panic)
    found += [view for view in more if view not in found]


def _step(items: Sequence[object]) -> int:
    """A subset is every n-th engine, because neighbours may share a rack and be slow together."""
    return max(1, -(-len(items) // SUBSET_SIZE))


def _eligible(
    members: Iterable[Member],
    model: str | None,
    exclude: frozenset[Endpoint],
    oldest: float,
    free_at: float,
    *,
    skip_blocked: bool,
    skip_silent: bool = True,
) -> list[Candidate]:
    found = []
    for member in members:
        if (
            (member.health.state is not UP and (skip_silent or not member.health.is_silent))
            or (model is not None and member.models is not None and model not in member.models)
            or (
                skip_blocked  # same as Member.is_blocked
                and (member.stall.since is not None or member.outlier.until is not None)
            )
            or member.full_until > free_at
            or member.view.endpoint in exclude
        ):
            continue
        view = member.view
        if member.gauges_at < oldest:
            view.other_requests = None
        found.append(view)
    return found
