"""Logs the outage of a source's server once, and its recovery once."""

import logging
import time
from collections.abc import Callable

__all__ = ["Outage"]

log = logging.getLogger(__name__)


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
        self._told: set[str] = set()
        self._since = 0.0

    def failed(self, asker: str, kind: str, cause: str) -> None:
        """Note that an attempt failed. `cause` tells what happened and what to do."""
        if not self._failing:
            self._since = self._clock()
        self._failing.add(asker)
        if kind not in self._told:
            self._told.add(kind)
            text = "discovery by %s fails, the last known engines stay in use: %s"
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
                self._told.clear()
                lasted = self._clock() - self._since
                log.info("discovery by %s works again, after %.0f s", self._what, lasted)
