"""Plays scenarios side by side. Most of a scenario's time is waiting for its engines' steps, so one
after the other they would take minutes, and a processor core would be idle most of the time.

All run in one event loop, in a thread of its own: pytest's work between two tests stops no engine.

Whether a machine is too slow for a scenario shows by this loop, in which the engines run: while it
is late, they really are slow. A scenario that fails then is played again; if the loop was late each
time its test is skipped, and says so.
"""

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from typing import Any, Self

import pytest
import uvloop

__all__ = ["ATTEMPTS", "LATE_S", "Lateness", "Stage", "play_again_if_late", "scenario"]

AT_ONCE = 3
"""Scenarios. Each needs about a third of a core; its load is late when there is none to be had."""

ATTEMPTS = 3
"""At a scenario that fails while the loop is late."""

LATE_S = 0.2
"""Seconds by which the loop is late on a machine that is too slow: five steps of an engine, and
most of a tick of the router's judgement."""

LOOK_S = 0.05
"""Seconds between two looks at the time."""

Scenario = Callable[..., Coroutine[Any, Any, None]]


def scenario(play: Scenario) -> Callable[..., None]:
    """A test that is played on the stage, by the time or before pytest gets to it."""

    @functools.wraps(play)
    def test(request: pytest.FixtureRequest, stage: "Stage", **_parameters: Any) -> None:
        stage.outcome(request.node.nodeid)

    own = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in ("request", "stage")]
    parameters = inspect.signature(play).parameters.values()
    given = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    test.__signature__ = inspect.Signature([*own, *given])  # type: ignore[attr-defined]
    return test


class Stage:
    """Starts the scenarios of some tests in their order, and keeps what came of them."""

    def __init__(self, tests: Iterable[pytest.Function]) -> None:
        self._outcomes: dict[str, Future[None]] = {}
        self._plays: list[tuple[Future[None], functools.partial[Coroutine[Any, Any, None]]]] = []
        for test in tests:
            outcome = self._outcomes[test.nodeid] = Future()
            parameters = test.callspec.params if hasattr(test, "callspec") else {}
            play: Scenario = inspect.unwrap(test.function)
            self._plays.append((outcome, functools.partial(play, **parameters)))
        self._loop = uvloop.new_event_loop()
        self._main: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="scenarios")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End what still plays."""
        self._loop.call_soon_threadsafe(self._cancel)
        self._thread.join()

    def outcome(self, name: str) -> None:
        """Wait for the end of a scenario; raises what it raised."""
        self._outcomes[name].result()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._play_all())

    def _cancel(self) -> None:
        if self._main is not None:
            self._main.cancel()

    async def _play_all(self) -> None:
        self._main = asyncio.current_task()
        places = asyncio.Semaphore(AT_ONCE)
        tasks = []
        try:
            for outcome, play in self._plays:
                await places.acquire()
                task = asyncio.create_task(self._play(outcome, play))
                task.add_done_callback(lambda _: places.release())
                tasks.append(task)
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _play(self, outcome: Future[None], play: functools.partial[Any]) -> None:
        try:
            await play_again_if_late(play)
        except BaseException as error:
            outcome.set_exception(error)
            if isinstance(error, asyncio.CancelledError):
                raise
        else:
            outcome.set_result(None)


class Lateness:
    """By how much an event loop is late."""

    def __init__(self) -> None:
        self.most = 0.0
        """Seconds."""

    async def watch(self) -> None:
        """Look until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LOOK_S
            await asyncio.sleep(LOOK_S)
            self.most = max(self.most, loop.time() - due)


async def play_again_if_late(
    play: Callable[[], Coroutine[Any, Any, None]], make_lateness: Callable[[], Lateness] = Lateness
) -> None:
    """Play until it succeeds, or fails though the loop is on time. Skips the test if the loop was
    late each time."""
    failure: Exception | None = None
    for _ in range(ATTEMPTS):
        lateness = make_lateness()
        watch = asyncio.create_task(lateness.watch())
        try:
            await play()
        except Exception as error:
            if lateness.most < LATE_S:
                raise
            failure = error
        else:
            return
        finally:
            watch.cancel()
    pytest.skip(f"the machine is too slow: {failure}")
