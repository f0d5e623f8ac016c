"""direct: the client's own request to one decode engine, or to the next one if that is safe."""

from collections.abc import Generator
from typing import Any

from router.core.errors import NoEngine
from router.core.events import FellBack
from router.core.plans.steps import Lease, Outcome, Plan, Release, Send, Step, Stream
from router.core.retry import ATTEMPTS, BUSY, error_of, may_move, may_replay, reason_of
from router.core.values import Endpoint, Facts, Reply, Role

__all__ = ["conclude", "direct", "move", "plain", "plain_on"]

NOBODY: frozenset[Endpoint] = frozenset()


def direct(facts: Facts) -> Plan:
    """Choose a decode engine and let it do everything."""
    yield from plain(facts)


def plain(facts: Facts, tried: frozenset[Endpoint] = NOBODY) -> Plan:
    """Lease a decode engine that computes the prompt, send it the client's body; move on while
    that is safe.

    Those in `tried` have failed this request before: they are not asked again, and count. Raises
    NoEngine when there is none at all.
    """
    endpoint = yield Lease(Role.DECODE, tried)
    yield from plain_on(facts, endpoint, tried)


def plain_on(facts: Facts, endpoint: Endpoint, tried: frozenset[Endpoint] = NOBODY) -> Plan:
    """The same, beginning with an engine that is leased."""
    replay = may_replay(facts)
    while True:
        outcome = yield Stream(endpoint, facts.path, facts.raw, keep=BUSY, replay=replay)
        if outcome is None:
            return
        tried |= {endpoint}
        other = None
        if len(tried) < ATTEMPTS and may_move(outcome, facts):
            other = yield from move(endpoint, tried, outcome)
        if other is None:
            yield from conclude(outcome)
            return
        endpoint = other


def move(
    endpoint: Endpoint, tried: frozenset[Endpoint], outcome: Outcome, *, computes: bool = True
) -> Generator[Step, Any, Endpoint | None]:
    """Give an endpoint back and lease another one; None when there is no other."""
    yield Release(endpoint)
    try:
        other = yield Lease(endpoint.role, tried, computes)
    except NoEngine:
        return None
    yield FellBack(endpoint.role, reason_of(outcome))
    return other  # type: ignore[no-any-return]


def conclude(outcome: Outcome) -> Plan:
    """Give the client the engine's own answer, or raise what its failure means."""
    if not isinstance(outcome, Reply):
        raise error_of(outcome)
    yield Send(outcome)
