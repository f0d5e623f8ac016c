"""Who of a pool may take a request now."""

from collections.abc import Iterable, Sequence
from random import Random
from typing import Final

from router.core.health import State
from router.core.member import Member
from router.core.values import Candidate, Endpoint

__all__ = ["SUBSET_SIZE", "eligible"]

SUBSET_SIZE: Final = 32
"""Largest random subset of a pool that one request considers. The best of 32 is hardly worse than
the best of a thousand, and the cost does not grow with the pool."""

UP: Final = State.UP


def eligible(
    pool: Sequence[Member],
    model: str | None,
    exclude: frozenset[Endpoint],
    oldest: float,
    rng: Random | None,
    *,
    is_panic: bool,
) -> list[Candidate]:
    """The members that may take a request for `model`; gauges from before `oldest` count as absent.

    With `rng`, a random subset of a large pool. Stalled and ejected engines are included only if
    there are no others, or in a panic.
    """
    skip = not is_panic
    if rng is not None and len(pool) > SUBSET_SIZE:
        # Every n-th: neighbours in the list share a rack, and may be slow together.
        step = -(-len(pool) // SUBSET_SIZE)
        some = pool[int(rng.random() * step) :: step]
        if found := _eligible(some, model, exclude, oldest, skip_blocked=skip):
            return found
    found = _eligible(pool, model, exclude, oldest, skip_blocked=skip)
    return found or _eligible(pool, model, exclude, oldest, skip_blocked=False)


def _eligible(
    members: Iterable[Member],
    model: str | None,
    exclude: frozenset[Endpoint],
    oldest: float,
    *,
    skip_blocked: bool,
) -> list[Candidate]:
    found = []
    for member in members:
        if (
            member.health.state is not UP
            or (model is not None and member.models is not None and model not in member.models)
            or (
                skip_blocked  # as in Member.is_blocked
                and (member.stall.since is not None or member.outlier.until is not None)
            )
            or member.view.endpoint in exclude
        ):
            continue
        view = member.view
        if member.gauges_at < oldest:
            view.other_requests = None
        found.append(view)
    return found
