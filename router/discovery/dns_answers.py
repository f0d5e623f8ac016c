"""What a name's DNS answers make believe of its engines. Pure."""

from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["LONGEST_SECONDS", "RETRY_SECONDS", "SHORTEST_SECONDS", "Answer", "Belief", "Host"]

SHORTEST_SECONDS = 1.0
"""Between two questions: a TTL of 0 means that answers must not be shared, not that servers are to
be flooded."""

LONGEST_SECONDS = 30.0
"""A TTL of an hour would keep a new engine waiting for an hour."""

RETRY_SECONDS = 5.0
"""After a question that failed or brought nothing: CoreDNS' own TTL."""


class Host(NamedTuple):
    """Where an engine listens: an address or a name, and a port."""

    host: str
    port: int


class Answer(NamedTuple):
    """What a server said to one question; no hosts: the name exists and has no such records."""

    hosts: tuple[Host, ...]
    ttl: float
    """Seconds for which it may be kept."""

    @property
    def seconds(self) -> float:
        """Until the question is to be asked again."""
        return min(max(self.ttl, SHORTEST_SECONDS), LONGEST_SECONDS)


class Belief:
    """What one question's answers have said. An empty answer is believed only when the next one is
    empty too: a server that has just started, or has lost its source, gives such answers."""

    def __init__(self) -> None:
        self.urls: frozenset[str] = frozenset()
        self.is_held = False
        """Whether an answer has been believed."""
        self._is_doubted = False

    def hear(self, urls: Iterable[str]) -> None:
        """Take an answer. Questions that fail are no answers: nothing changes."""
        found = frozenset(urls)
        if found or self._is_doubted:
            self.urls, self.is_held = found, True
        self._is_doubted = not found
