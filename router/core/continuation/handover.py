"""How one stream goes from engine to engine: which it may not use, its pauses, its next plan."""

from collections.abc import Callable
from typing import Final

from router.core.continuation.journal import Journal
from router.core.continuation.seam import find_seam
from router.core.events import Continuation
from router.core.plans.steps import Plan, Plans
from router.core.request_facts import Facts
from router.core.retry import ATTEMPTS, is_queue_full
from router.core.values import Decision, Endpoint, Failure, FailureKind, Reply

__all__ = ["LEFT", "Handover"]

LEFT: Final = Failure(FailureKind.BROKEN, "The engine was left.")
"""In place of a failure, for an engine that has not failed: it is drained, or slow."""

ROOM_SECONDS: Final = 30.0
"""Seconds for which a stream that has left its engine tries again while all others are full. Its
client has a part of the answer, and may wait a little for the rest."""


class Handover:
    """The engines of one stream that may be continued. `plans` creates the plan of the next one."""

    __slots__ = (
        "_cut_at",
        "_engine",
        "_pause",
        "_plans",
        "_slow",
        "awaits_move",
        "engines",
        "journal",
    )

    _engine: Endpoint
    """The decode engine that was leased last."""

    def __init__(self, journal: Journal, plans: Plans) -> None:
        self.journal = journal
        self.engines: frozenset[Endpoint] = frozenset()
        """Those that have failed the request or were too slow, and the present one."""
        self.awaits_move = False
        """Whether the stream waits to go on with another engine."""
        self._plans = plans
        self._slow: frozenset[Endpoint] = frozenset()
        """Those of `engines` that stalled or were slow, and may be used if no other is left."""
        self._cut_at: float | None = None
        """When the engine failed or was left, in monotonic seconds; None once another one has sent
        a token."""
        self._pause = 0.0
        """Seconds from the failures of engines to the next ones' first tokens."""

    def leased(self, engine: Endpoint) -> None:
        """Note the lease of a decode engine."""
        self._engine = engine
        self.engines |= {engine}

    def spare(self, engine: Endpoint) -> None:
        """Let an engine be used again that did not serve the request, because it is full."""
        self.engines -= {engine}

    def leave(self, *, is_drained: bool) -> bool:
        """Leave an engine that has not failed: a drained one, which may be used again, or a slow
        one, which may if no other is left. Returns False if the stream cannot be continued."""
        if not self.journal.cut(LEFT):
            return False
        if is_drained:
            self.engines -= {self._engine}
        else:
            self._slow |= {self._engine}
        return True

    def take_cut(self, now: float) -> tuple[Endpoint, Failure] | None:
        """The engine that has failed or was left since the last call, and how. `now`: monotonic
        seconds."""
        failure = self.journal.take_cut()
        if failure is None:
            return None
        if failure.kind is FailureKind.STALLED:
            self._slow |= {self._engine}
        if self._cut_at is None:
            self._cut_at = now
        return self._engine, failure

    @property
    def is_cut(self) -> bool:
        """Whether the stream has left an engine, and no other has sent a token since."""
        return self._cut_at is not None

    def try_slow(self) -> bool:
        """Let the engines that stalled or were slow be used again. Returns False if there are
        none."""
        found, self._slow = self._slow, frozenset()
        self.engines -= found
        return bool(found)

    def tries_again(self, reply: Reply, now: float) -> bool:
        """Whether the stream looks for an engine again, after the next one has answered with
        `reply`: that is full. Then slow ones may be used again."""
        since = self._cut_at
        if since is None or not is_queue_full(reply):
            return False
        return self.try_slow() or now - since < ROOM_SECONDS

    def plan(self, facts: Facts, decide: Callable[[Facts], Decision]) -> Plan:
        """The plan by which another engine goes on. Raises as `find_seam` and `Journal.resume`
        do."""
        self.awaits_move = False
        if self.journal.is_partial:
            yield from find_seam(self.journal, self.engines)
        self.journal.resume(facts)
        facts.tried = self.engines
        yield from self._plans(facts, decide(facts))

    def begun(self, now: float) -> None:
        """Note a token of the engine that goes on, at `now` in monotonic seconds."""
        if self._cut_at is not None:
            self._pause += now - self._cut_at
            self._cut_at = None

    @property
    def obstacle(self) -> str:
        """Why no other engine goes on with a stream that has left one."""
        if self.journal.broken is not None:
            return self.journal.broken
        return "attempts" if len(self.engines) >= ATTEMPTS else "no_engine"

    def ended(self, outcome: str) -> Continuation:
        """What became of the stream."""
        journal = self.journal
        return Continuation(outcome, journal.carried, journal.discarded, self._pause)
