"""Loops that begin and end with an engine."""

import asyncio

from router.core.candidate import Candidate
from router.core.fleet.member import Member
from router.core.values import Endpoint, Role
from router.net.background.member_loops import MemberLoops
from router.net.tasks import TaskSet
from tests.net.harness import eventually


def member(number: int) -> Member:
    """An engine."""
    return Member(Candidate(Endpoint(f"http://e{number}", Role.DECODE), number))


async def test_each_engine_has_its_loops_while_it_is_there() -> None:
    running: list[str] = []

    async def loop(kind: str, of: Member) -> None:
        name = f"{kind} {of.endpoint.url}"
        running.append(name)
        try:
            await asyncio.Event().wait()
        finally:
            running.remove(name)

    tasks = TaskSet()
    loops = MemberLoops(
        tasks, {"probe": lambda of: loop("probe", of), "scrape": lambda of: loop("scrape", of)}
    )
    one, other, third = map(member, range(3))
    loops.follow([one, other])
    await eventually(lambda: len(running) == 4)
    loops.follow([other, third])
    expected = {f"{kind} http://e{n}" for kind in ("probe", "scrape") for n in (1, 2)}
    await eventually(lambda: len(running) == 4 and set(running) == expected)
    replaced = member(1)
    loops.follow([replaced, third])
    await eventually(lambda: len(running) == 4 and len(tasks._tasks) == 4)
    loops.follow([])
    await eventually(lambda: not running and not tasks._tasks)
    await tasks.close()
