"""An attempt to connect reports its outcome once, and leaves no state."""

import asyncio
import types
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router.core.values import Failure, FailureKind
from router.net.engine.dial import CLOSED, Dial
from router.net.engine.engine_connection import EngineConnection
from router.net.known_heads import KnownHeads
from router.net.limits.read_limiter import ReadLimiter

REFUSED = Failure(FailureKind.REFUSED, "refused")
LATE = Failure(FailureKind.REFUSED, "late")


class Loop:
    """Runs scheduled callbacks on request."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.timers: list[Callable[[], None]] = []

    def call_soon(self, call: Callable[..., None], *args: object) -> None:
        self.soon.append(partial(call, *args))

    def call_later(self, _: float, call: Callable[..., None], *args: object) -> Any:
        timer = partial(call, *args)
        self.timers.append(timer)

        def cancel() -> None:
            if timer in self.timers:
                self.timers.remove(timer)

        return types.SimpleNamespace(cancel=cancel)

    def turn(self) -> None:
        soon, self.soon = self.soon, []
        for call in soon:
            call()


class Future:
    """What a coroutine waits for."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._callback: Callable[[object], None] | None = None
        self._is_cancelled = False
        self.is_done = False

    def add_done_callback(self, callback: Callable[[object], None]) -> None:
        self._callback = callback

    def set(self) -> None:
        """It is done: in the next turn the coroutine continues."""
        if not self.is_done:
            self.is_done = True
            assert self._callback is not None
            self._loop.call_soon(self._callback, self)

    def cancel(self) -> bool:
        self._is_cancelled = not self.is_done
        self.set()
        return self._is_cancelled

    @types.coroutine
    def wait(self) -> Generator[Any, None, None]:
        """As `await` of a future of asyncio."""
        yield self
        if self._is_cancelled:
            raise asyncio.CancelledError


class Bench:
    """A dial that waits `waits` times, as for a lookup or a TLS handshake, and then has a
    connection or a failure."""

    def __init__(self, outcome: Failure | None = None, *, waits: int = 1) -> None:
        self.loop = Loop()
        self.future = Future(self.loop)
        owner: Any = types.SimpleNamespace(read_limiter=ReadLimiter(1), known_heads=KnownHeads(1))
        self.connection = EngineConnection(owner)
        self.told: list[object] = []
        self.counted: list[object] = []
        self.steps: list[str] = []
        self._outcome = outcome
        loop: Any = self.loop
        self.dial = Dial(loop, self.counted.append, self.told.append)
        self.dial.begin(self._open(waits=waits), 1.0, lambda: LATE)

    async def _open(self, *, waits: int) -> Failure | None:
        self.steps.append("began")
        try:
            for _ in range(waits):
                self.future = Future(self.loop)
                await self.future.wait()
        except asyncio.CancelledError:
            self.steps.append("stopped")
            raise
        self.steps.append("ended")
        return self._outcome


def test_it_starts_at_once_and_reports_the_connection_in_connection_made() -> None:
    bench = Bench()
    assert bench.steps == ["began"]
    bench.dial.made(bench.connection)
    assert bench.told == bench.counted == [bench.connection]
    assert not bench.loop.timers
    bench.future.set()
    bench.loop.turn()
    assert bench.steps == ["began", "ended"], "or the event loop closes the connection"


@pytest.mark.parametrize("waits", [0, 1])
def test_an_immediate_failure_is_reported_in_a_later_turn(waits: int) -> None:
    bench = Bench(REFUSED, waits=waits)
    assert bench.told == []
    if waits:
        bench.future.set()
        bench.loop.turn()
    bench.loop.turn()
    assert bench.told == [REFUSED]
    assert bench.counted == bench.loop.timers == []


def test_after_its_time_it_is_stopped() -> None:
    bench = Bench()
    bench.loop.timers[0]()
    assert bench.told == [LATE]
    bench.loop.turn()
    bench.loop.turn()
    assert bench.steps == ["began", "stopped"]
    assert bench.told == [LATE]


def test_its_awaited_future_may_be_cancelled_by_others() -> None:
    bench = Bench()
    bench.future.cancel()
    bench.loop.turn()
    bench.loop.turn()
    assert bench.told == [CLOSED]


def test_a_connection_made_after_its_cancellation_is_ignored() -> None:
    """The event loop's method closes it, because it is cancelled."""
    bench = Bench()
    bench.dial.cancel()
    bench.dial.made(bench.connection)
    bench.loop.turn()
    assert bench.steps == ["began", "stopped"]
    assert bench.told == bench.counted == bench.loop.timers == []


@pytest.mark.parametrize("is_late", [True, False])
def test_it_stops_even_if_its_awaited_future_is_done(is_late: bool) -> None:
    """Else it would wait for the next thing, such as a TLS handshake, without end."""
    bench = Bench(waits=2)
    bench.future.set()
    if is_late:
        bench.loop.timers[0]()
    else:
        bench.dial.cancel()
    bench.loop.turn()
    assert bench.steps == ["began", "stopped"]


def test_the_cleanup_of_a_stopped_task_is_not_stopped() -> None:
    bench = Bench(waits=0)
    cleaned: list[bool] = []

    async def opens() -> None:
        try:
            await bench.future.wait()
        finally:
            bench.future = Future(bench.loop)
            await bench.future.wait()
            cleaned.append(True)

    loop: Any = bench.loop
    dial = Dial(loop, bench.counted.append, bench.told.append)
    dial.begin(opens(), 1.0, lambda: LATE)
    dial.cancel()
    bench.loop.turn()
    bench.future.set()
    bench.loop.turn()
    assert cleaned


EVENTS = st.lists(st.sampled_from(["done", "made", "cancel", "time", "turn"]), max_size=8)


@given(EVENTS, st.booleans(), st.integers(1, 3))
@example(["done", "turn", "cancel"], False, 1)
def test_it_reports_at_most_once_and_never_after_a_cancel(
    events: list[str], fails: bool, waits: int
) -> None:
    bench = Bench(REFUSED if fails else None, waits=waits)
    is_cancelled = is_made = has_ended = False
    for event in events:
        before = len(bench.told)
        # By itself, before anything could stop it.
        has_ended |= not is_cancelled and not bench.told and "ended" in bench.steps
        if event == "done":
            bench.future.set()
        elif event == "made" and not is_made and not fails and "stopped" not in bench.steps:
            is_made = True
            bench.dial.made(bench.connection)
        elif event == "cancel":
            bench.dial.cancel()
            is_cancelled = is_cancelled or not bench.told
        elif event == "time":
            for timer in bench.loop.timers[:]:
                timer()
        else:
            bench.loop.turn()
        assert len(bench.told) <= (before if is_cancelled else 1)
    was_stopped = is_cancelled or bench.told == [LATE]
    for _ in range(waits + 2):
        bench.future.set()
        bench.loop.turn()
    assert len(bench.told) <= 1
    owned = bench.told == [bench.connection]
    assert bench.counted == [bench.connection] * owned
    assert bench.steps[-1] in ("stopped", "ended"), "nothing is left waiting"
    if was_stopped and not fails:
        assert bench.steps[-1] == "stopped" or is_made or has_ended
    if bench.told or is_cancelled:
        assert not bench.loop.timers
