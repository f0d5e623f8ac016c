"""Interprets the DNS answers for a name. Pure."""

from collections.abc import Iterable
from typing import NamedTuple

__all__ = [
    "LONGEST_SECONDS",
    "RETRY_SECONDS",
    "SHORTEST_SECONDS",
    "AcceptedAnswer",
    "Answer",
    "Host",
]

SHORTEST_SECONDS = 1.0
"""Shortest interval in seconds. A TTL of 0 means that answers must not be shared, not that servers
should be flooded."""

LONGEST_SECONDS = 30.0
"""Longest interval in seconds, so that with a TTL of an hour a new engine need not wait for an
hour."""

RETRY_SECONDS = 5.0
"""Seconds until a retry after a failed question or an empty answer; CoreDNS' default TTL."""


class Host(NamedTuple):
    """Where an engine listens: an address or name, and a port."""

    host: str
    port: int


class Answer(NamedTuple):
    """A server's answer to one question. Without hosts: the name exists but has no such records."""

    hosts: tuple[Host, ...]
    ttl: float
    """Seconds for which it may be cached."""

    @property
    def seconds(self) -> float:
        """Seconds until the question should be asked again."""
        return min(max(self.ttl, SHORTEST_SECONDS), LONGEST_SECONDS)


class AcceptedAnswer:
    """The accepted result of one question. An empty answer is accepted only if the next one is
    empty too, because a server that has just started, or has lost its source, gives such
    answers."""

    def __init__(self) -> None:
        self.urls: frozenset[str] = frozenset()
        self.is_held = False
        """Whether an answer has been accepted."""
        self._is_doubted = False

    def update(self, urls: Iterable[str]) -> None:
        """Process an answer. Failed questions have no answer and change nothing."""
        found = frozenset(urls)
        if found or self._is_doubted:
            self.urls, self.is_held = found, True
        self._is_doubted = not found
