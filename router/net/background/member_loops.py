"""Background loops for each engine of the fleet, which start and end with its membership."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any

from router.core.fleet.member import Member
from router.net.tasks import TaskSet

__all__ = ["MemberLoops"]

MemberLoop = Callable[[Member], Coroutine[Any, Any, None]]


class MemberLoops:
    """Runs `loops`, given by their kinds, once for each member."""

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
