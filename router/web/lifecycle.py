"""The states of a router: starting, serving, shutting down, failed."""

import time
from collections.abc import Callable
from typing import Final

from router.core.errors import Unhealthy
from router.net.tasks import TaskSet

__all__ = ["START_SECONDS", "Lifecycle"]

START_SECONDS: Final = 60.0
"""Age of a router in seconds below which an invalid configuration of a source ends it. An older
router has clients to serve, with this source or without it."""

WRONG_CONFIGURATION: Final = 2
"""Exit status if only another configuration can help. It ends all workers."""

FAILED: Final = 1
"""Exit status of a worker that should be restarted."""


class Lifecycle:
    """The states of a router: starting, serving, shutting down. It began at `began`, in monotonic
    seconds, with all of its workers; its background tasks are `tasks`."""

    def __init__(self, tasks: TaskSet, began: float) -> None:
        self.is_draining = False
        self.exit_status = 0
        """Exit status of the process."""
        self.on_failed: Callable[[], None] | None = None
        """The server sets it: called when the router cannot go on."""
        self._tasks = tasks
        self._began = began

    @property
    def is_starting(self) -> bool:
        """Whether the router, with all of its workers, was started recently."""
        return time.monotonic() - self._began < START_SECONDS

    def fail(self) -> None:
        """End the process, because its configuration can never work. The exit status ends all
        workers only if the router is starting: a restart may help one that has worked."""
        self.exit_status = WRONG_CONFIGURATION if self.is_starting else FAILED
        if self.on_failed is not None:
            self.on_failed()

    def check(self) -> None:
        """Raise Unhealthy while a background task keeps failing."""
        if names := self._tasks.failing():
            raise Unhealthy(f"Background tasks of the router keep failing: {', '.join(names)}.")
