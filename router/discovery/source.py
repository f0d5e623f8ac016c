"""What a source of discovery is."""

from collections.abc import Callable
from typing import Protocol

from router.core.membership.membership import Target

__all__ = ["Known", "OnAnswer", "OnTargets", "Source", "WrongConfiguration", "nothing_known"]

OnTargets = Callable[[tuple[Target, ...]], None]
"""Takes the whole set that a source names, each time it changes."""

Known = Callable[[str], tuple[Target, ...] | None]
"""The set that the source of this name told last, perhaps in a process before this one; None: it
has told none."""

OnAnswer = Callable[[str], None]
"""Told each time that a server of a source has said what is so, with the server's name."""


def nothing_known(_source: str) -> None:
    """No source has told a set."""


class WrongConfiguration(Exception):
    """A source cannot work as it is configured, and trying again will not mend that. The text says
    what to change."""


class Source(Protocol):
    """Names the engines of the fleet while the router runs."""

    name: str
    """For logs and for the list of engines."""

    @property
    def servers(self) -> tuple[str, ...]:
        """What it asks, as metrics name it: each has an age."""

    async def watch(self, on_targets: OnTargets) -> None:
        """Run without end. Raises only what retrying cannot fix: WrongConfiguration."""
