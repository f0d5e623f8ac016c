"""The interface of discovery sources."""

from collections.abc import Callable
from typing import Protocol

from router.core.membership.entry import Target

__all__ = ["Known", "OnAnswer", "OnTargets", "Source", "WrongConfiguration", "nothing_known"]

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
    """A source cannot work as it is configured, and retrying will not help. The message tells what
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
