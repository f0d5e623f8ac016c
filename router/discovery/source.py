"""What a source of discovery is."""

from collections.abc import Callable
from typing import Protocol

from router.core.membership import Target

__all__ = ["OnTargets", "Source"]

OnTargets = Callable[[tuple[Target, ...]], None]
"""Takes the whole set that a source names, each time it changes."""


class Source(Protocol):
    """Names the engines of the fleet while the router runs."""

    name: str
    """For logs and for the list of engines."""

    async def watch(self, on_targets: OnTargets) -> None:
        """Run for ever. Raises only for what will not mend (a wrong configuration)."""
