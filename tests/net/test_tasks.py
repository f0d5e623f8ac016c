"""Background loops: a failed one is restarted, and its failure is visible."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from router.core.candidate import Candidate
from router.core.judge.member import Member
from router.core.judge.verdict import Stall
from router.core.values import Endpoint, Role
from router.net.tasks import (
    FIRST_DELAY_SECONDS,
    LONGEST_DELAY_SECONDS,
    SETTLED_SECONDS,
    MemberLoops,
    TaskSet,
)
from tests.net.harness import Harness, eventually


class Bench:
    """A set with its time moved by the test, and a loop that fails on request."""

    def __init__(self) -> None:
        self.now = 0.0
        self.starts = 0
        self.sleeps: list[float] = []
        self._wakes: asyncio.Queue[None] = asyncio.Queue()
        self._fails: asyncio.Queue[None] = asyncio.Queue()
        self.tasks = TaskSet(lambda: self.now, self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        await self._wakes.get()
        self.now += seconds

    async def loop(self) -> None:
        """Run until `fail`."""
        self.starts += 1
        await self._fails.get()
        raise ZeroDivisionError

    async def fail(self) -> None:
        """Let the loop fail; wait until it waits for its restart."""
        before = len(self.sleeps)
        self._fails.put_nowait(None)
        await eventually(lambda: len(self.sleeps) > before)

    async def restart(self) -> None:
        """Let the delay pass; wait until the loop runs."""
        before = self.starts
        self._wakes.put_nowait(None)
        await eventually(lambda: self.starts > before)


@pytest.fixture
async def bench(complaints: list[str]) -> AsyncIterator[Bench]:
    bench = Bench()
    bench.tasks.spawn(bench.loop, "ticker", "of one")
    await eventually(lambda: bench.starts == 1)
    yield bench
    await bench.tasks.close()
    await bench.tasks.close()
    complaints.clear()


async def test_a_loop_that_fails_is_restarted_ever_later_and_each_failure_is_logged(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(9):
        await bench.fail()
        await bench.restart()
    assert bench.sleeps[:3] == [FIRST_DELAY_SECONDS * factor for factor in (1, 2, 4)]
    assert bench.sleeps[-2:] == [LONGEST_DELAY_SECONDS] * 2
    assert caplog.messages[0] == "ticker of one failed; restarting it in 0.25 s"
    assert len(caplog.messages) == 9
    assert caplog.records[0].exc_info is not None


async def test_it_counts_as_failing_until_it_has_run_well_for_a_while(bench: Bench) -> None:
    assert bench.tasks.failing() == []
    await bench.fail()
    assert bench.tasks.failing() == ["ticker"]
    bench.now += 3600  # waiting for its restart is not running well
    assert bench.tasks.failing() == ["ticker"]
    await bench.restart()
    bench.now += SETTLED_SECONDS - 1
    assert bench.tasks.failing() == ["ticker"]
    bench.now += 1
    assert bench.tasks.failing() == []
    await bench.fail()
    assert bench.tasks.failing() == ["ticker"]
    assert bench.sleeps == [FIRST_DELAY_SECONDS] * 2  # it had settled


async def test_several_of_a_kind_are_named_once(bench: Bench) -> None:
    bench.tasks.spawn(bench.loop, "ticker", "of another")
    await eventually(lambda: bench.starts == 2)
    await bench.fail()
    await bench.fail()
    assert bench.tasks.failing() == ["ticker"]


async def test_a_normal_end_is_no_failure(bench: Bench) -> None:
    async def short() -> None:
        """Nothing."""

    bench.tasks.spawn(short, "short")
    await eventually(lambda: len(bench.tasks._tasks) == 1)
    assert bench.tasks.failing() == []


@pytest.mark.parametrize(
    ("where", "kind"),
    [
        ("router.core.fleet.fleet.Fleet.tick", "fleet ticker"),
        ("router.net.background.prober.Prober._probe", "health probe"),
        ("router.net.background.prober.Prober._scrape", "metrics scrape"),
        ("router.net.background.speed_prober.SpeedProber._probe", "speed probe"),
    ],
)
async def test_a_router_whose_loop_keeps_failing_is_not_healthy_until_it_runs_again(
    harness: Harness,
    monkeypatch: pytest.MonkeyPatch,
    complaints: list[str],
    where: str,
    kind: str,
) -> None:
    monkeypatch.setattr("router.net.tasks.FIRST_DELAY_SECONDS", 0.001)
    engine = await harness.engine()
    often: dict[str, Any] = {"health_check_interval": 0.01, "engine_stats_interval": 0.01}
    router = await harness.router(engine, speed_probe_interval=0.01, **often)
    member = router.router.fleet.member(router.endpoint(engine))
    client = await router.client()
    assert (await client.get("/health")).status == 200
    with monkeypatch.context() as broken:
        broken.setattr(where, None)
        if kind == "speed probe":  # only excluded engines get one
            stalled = replace(member.verdict, stall=Stall(time.monotonic()))
            broken.setattr(member, "verdict", stalled)
        await eventually(router.router._tasks.failing)
        for path in ("/health", "/ready"):
            answer = await client.get(path)
            assert answer.status == 503
            assert answer.error["type"] == "ServiceUnavailableError"
            text = f"Background tasks of the router keep failing: {kind}."
            assert answer.error["message"] == text
            assert engine.url.encode() not in answer.body
    monkeypatch.setattr("router.net.tasks.SETTLED_SECONDS", 0.0)
    await eventually(lambda: not router.router._tasks.failing())
    assert (await client.get("/health")).status == 200
    assert kind in complaints[0]
    complaints.clear()


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
