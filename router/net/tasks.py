"""Background loops that run as long as the router, or as long as an engine is in the fleet, and are
restarted when they fail.

Each failure is logged. `failing` lists the loops that keep failing, for /health and /ready.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any

from router.core.judge.member import Member

__all__ = ["Loop", "MemberLoops", "TaskSet"]

log = logging.getLogger(__name__)

FIRST_DELAY_SECONDS = 0.25
"""Seconds until the first restart; the delay doubles with each further one."""

LONGEST_DELAY_SECONDS = 10.0
"""Longest delay of a restart in seconds: six log lines a minute."""

SETTLED_SECONDS = 10.0
"""Seconds after which a restarted loop counts as healthy. After a single failure that is within 30
s, before the liveness probe in deploy/kubernetes restarts the pod."""

Loop = Callable[[], Coroutine[Any, Any, None]]
"""Starts the loop; called again after a failure."""


class TaskSet:
    """Owns background loops; the event loop itself only holds weak references to tasks.

    `clock` is monotonic and in seconds, `sleep` takes seconds.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._tasks: set[asyncio.Task[None]] = set()
        self._restarted: dict[asyncio.Task[None], float | None] = {}
        """Tasks that have failed, with the time of their last restart; None while they wait for
        it."""

    def spawn(self, loop: Loop, kind: str, of: str = "") -> asyncio.Task[None]:
        """Run `loop` until it ends, is cancelled, or the set is closed.

        `kind` appears in /health if the loop keeps failing; `of` tells loops of one kind apart in
        the log.
        """
        task = asyncio.get_running_loop().create_task(
            self._run(loop, f"{kind} {of}".rstrip()), name=kind
        )
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def failing(self) -> list[str]:
        """The kinds of loops that have failed and not run well since, without duplicates."""
        settled = self._clock() - SETTLED_SECONDS
        kinds = (
            task.get_name()
            for task, restarted in self._restarted.items()
            if restarted is None or restarted > settled
        )
        return sorted(set(kinds))

    async def close(self) -> None:
        """Cancel the running tasks and wait for them."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, loop: Loop, name: str) -> None:
        task = asyncio.current_task()
        assert task is not None, "it runs in one"
        delay = FIRST_DELAY_SECONDS
        while True:
            started = self._clock()
            try:
                await loop()
            except Exception:
                if self._clock() - started >= SETTLED_SECONDS:
                    delay = FIRST_DELAY_SECONDS
                log.exception("%s failed; restarting it in %g s", name, delay)
            else:
                return
            self._restarted[task] = None
            await self._sleep(delay)
            delay = min(2 * delay, LONGEST_DELAY_SECONDS)
            self._restarted[task] = self._clock()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._restarted.pop(task, None)


MemberLoop = Callable[[Member], Coroutine[Any, Any, None]]


class MemberLoops:
    """Runs `loops`, given by their kinds, for each engine of the fleet as long as it is a
    member."""

    def __init__(self, tasks: TaskSet, loops: Mapping[str, MemberLoop]) -> None:
        self._tasks = tasks
        self._loops = loops
        self._running: list[tuple[Member, list[asyncio.Task[None]]]] = []

    def follow(self, members: Iterable[Member]) -> None:
        """Run the loops of these members, and no others."""
        current = {id(member): member for member in members}
        kept = []
        for member, tasks in self._running:
            if current.pop(id(member), None) is None:
                for task in tasks:
                    task.cancel()
            else:
                kept.append((member, tasks))
        for member in current.values():
            url = member.endpoint.url
            kept.append(
                (
                    member,
                    [
                        self._tasks.spawn(partial(loop, member), kind, url)
                        for kind, loop in self._loops.items()
                    ],
                )
            )
        self._running = kept
