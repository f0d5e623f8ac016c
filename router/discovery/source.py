"""What a discovery source is, and what sources share: retry delays, and one log line per outage."""

import logging
import time
from collections.abc import Callable
from random import Random
from typing import Protocol

from router.core.membership.entry import Target

__all__ = [
    "FIRST_SECONDS",
    "LONGEST_SECONDS",
    "Backoff",
    "Known",
    "OnAnswer",
    "OnTargets",
    "Outage",
    "Source",
    "WrongConfiguration",
    "nothing_known",
]

log = logging.getLogger(__name__)

OnTargets = Callable[[tuple[Target, ...]], None]
"""Called with the complete set of a source each time it changes."""

Known = Callable[[str], tuple[Target, ...] | None]
"""The set that the source of this name listed last, perhaps in a previous process; None if it has
listed none."""

OnAnswer = Callable[[str], None]
"""Called with the name of a source's server each time it has answered."""


def nothing_known(_source: str) -> None:
    """No source has listed a set."""


class WrongConfiguration(Exception):
    """A source cannot work as it is configured, and retrying will not help. The message says what
    to change."""


class Source(Protocol):
    """Lists the engines of the fleet while the router runs."""

    name: str
    """For logs and the list of engines."""

    @property
    def servers(self) -> tuple[str, ...]:
        """The servers that it queries, by the names used in metrics, which export when each last
        answered."""

    async def watch(self, on_targets: OnTargets) -> None:
        """Run without end. Raises only what retrying cannot fix: WrongConfiguration."""


FIRST_SECONDS = 0.5
"""Longest first delay in seconds: an API server that restarts behind a load balancer is quickly
available again."""

LONGEST_SECONDS = 30.0
"""Longest delay in seconds: a hundred routers then send a failing server seven requests a
second."""


class Backoff:
    """The delays of one caller, in seconds. Half of each is random, so that routers that lost the
    same server do not all return at the same moment."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._ceiling = FIRST_SECONDS

    def next(self) -> float:
        """The delay before the next attempt."""
        delay = self._ceiling * self._chance.uniform(0.5, 1.0)
        self._ceiling = min(2 * self._ceiling, LONGEST_SECONDS)
        return delay

    def reset(self) -> None:
        """Start over, because an attempt has succeeded."""
        self._ceiling = FIRST_SECONDS


class Outage:
    """The failures of one server, which several callers, distinguished by name, may meet.

    Each kind of failure is logged once per outage: an API server that is unreachable and later
    rejects the token needs two different actions. It is logged at `level`. `clock` is monotonic, in
    seconds. `on_answer` is called when a caller got an answer and no other one fails.
    """

    def __init__(
        self,
        what: str,
        clock: Callable[[], float] = time.monotonic,
        on_answer: Callable[[], None] = lambda: None,
        level: int = logging.WARNING,
    ) -> None:
        self._what = what
        self._clock = clock
        self._on_answer = on_answer
        self._level = level
        self._failing: set[str] = set()
        self._logged: set[str] = set()
        self._since = 0.0

    def failed(self, asker: str, kind: str, cause: str) -> None:
        """Note that an attempt failed. `cause` says what happened and what to do."""
        if not self._failing:
            self._since = self._clock()
        self._failing.add(asker)
        if kind not in self._logged:
            self._logged.add(kind)
            text = "discovery by %s fails; keeping the last known engines: %s"
            log.log(self._level, text, self._what, cause)

    def answered(self, asker: str) -> None:
        """Note that the server has answered, which does not end the outage yet."""
        if not self._failing - {asker}:
            self._on_answer()

    def succeeded(self, asker: str) -> None:
        """Note that an attempt succeeded."""
        self.answered(asker)
        if asker in self._failing:
            self._failing.remove(asker)
            if not self._failing:
                self._logged.clear()
                lasted = self._clock() - self._since
                log.info("discovery by %s works again, after %.0f s", self._what, lasted)
