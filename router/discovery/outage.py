"""Tells operators once that a source's server fails, and once that it is well again."""

import logging
import time
from collections.abc import Callable

__all__ = ["Outage"]

log = logging.getLogger(__name__)


class Outage:
    """The failures of what one server is asked for, by several askers that are told apart by name.

    Each kind of failure is logged once per outage, however often it is met: an API server that was
    unreachable and then refuses the token is two different things to do. It is logged at `level`.
    `clock` is monotonic and in seconds. `on_answer` is called when one was answered and none of the
    others fails.
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
        self._told: set[str] = set()
        self._since = 0.0

    def failed(self, asker: str, kind: str, cause: str) -> None:
        """An attempt failed. `cause` says what happened and what to do."""
        if not self._failing:
            self._since = self._clock()
        self._failing.add(asker)
        if kind not in self._told:
            self._told.add(kind)
            text = "discovery by %s fails, the last known engines stay in use: %s"
            log.log(self._level, text, self._what, cause)

    def answered(self, asker: str) -> None:
        """The server has said what is so; that does not end the outage."""
        if not self._failing - {asker}:
            self._on_answer()

    def succeeded(self, asker: str) -> None:
        """An attempt succeeded."""
        self.answered(asker)
        if asker in self._failing:
            self._failing.remove(asker)
            if not self._failing:
                self._told.clear()
                lasted = self._clock() - self._since
                log.info("discovery by %s works again, after %.0f s", self._what, lasted)
