"""Plays scenarios side by side. Most of a scenario's time is waiting for its engines' steps, so one
after the other they would take minutes, and a processor core would be idle most of the time.

All run in one event loop, in a thread of its own: pytest's work between two tests stops no engine.

A scenario that fails while the machine is too slow (`lateness.py`) is played again; if the machine
was too slow each time its test is skipped, and says so.
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

from tests.e2e.judgement.lateness import Lateness, MachineTooSlow

__all__ = ["ATTEMPTS", "Stage", "play_again_if_late", "scenario"]

AT_ONCE = 3
"""Scenarios. Each needs about a third of a core; its load is late when there is none to be had."""

ATTEMPTS = 3
"""At a scenario that fails while the machine is too slow."""

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
    """Starts the scenarios of some tests in their order, and keeps the results."""

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


async def play_again_if_late(
    play: Callable[[], Coroutine[Any, Any, None]], make_lateness: Callable[[], Lateness] = Lateness
) -> None:
    """Play until it succeeds, or fails though the machine is fast enough. Skips the test if it was
    too slow each time."""
    failure: Exception | None = None
    for _ in range(ATTEMPTS):
        lateness = make_lateness()
        watch = asyncio.create_task(lateness.watch())
        try:
            await play()
        except MachineTooSlow as error:
            failure = error
        except Exception as error:
            if not lateness.is_too_much:
                raise
            failure = error
        else:
            return
        finally:
            watch.cancel()
    pytest.skip(f"the machine is too slow: {failure}")
