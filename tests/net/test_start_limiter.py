"""How much is done in one turn of the event loop."""

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.net.engine.pool import HANDSHAKE_STARTS
from router.net.limits.start_limiter import (
    LATE_SECONDS,
    LATE_TURN,
    LONG_TURN,
    MAX_TURNS,
    StartLimiter,
)
from tests.net.harness import Harness, eventually
from tests.net.payloads import COMPLETIONS, OK, completion

MOST = 3


class Loop:
    """Runs what was scheduled, turn by turn."""

    def __init__(self) -> None:
        self._soon: list[Any] = []
        self.now = 0.0

    def time(self) -> float:
        """In seconds."""
        return self.now

    def call_soon(self, call: Any, *args: object) -> None:
        """In the next turn."""
        self._soon.append(partial(call, *args))

    def turn(self) -> bool:
        """One turn; whether there was anything to do."""
        soon, self._soon = self._soon, []
        for call in soon:
            call()
        return bool(soon)


def bench() -> tuple[StartLimiter, Any]:
    """The object and its loop."""
    return StartLimiter(MOST), Loop()


def test_work_that_comes_now_and_then_is_done_at_once_and_schedules_nothing() -> None:
    start_limiter, loop = bench()
    for n in range(10):
        start_limiter.refill()
        done: list[int] = []
        for _ in range(MOST):
            start_limiter.submit(loop, partial(done.append, n))
        assert done == [n] * MOST
    assert not loop.turn()


@given(st.lists(st.integers(0, 20) | st.none(), max_size=10))
def test_all_is_done_in_order_and_never_much_in_a_turn(arrivals: list[int | None]) -> None:
    """In each turn first what came by sockets, then what was scheduled, as in uvloop; None: time
    passes."""
    start_limiter, loop = bench()
    done: list[int] = []
    came = 0
    for number in arrivals:
        before = len(done)
        if number is None:
            start_limiter.refill()
        for _ in range(number or 0):
            start_limiter.submit(loop, partial(done.append, came))
            came += 1
        loop.turn()
        assert len(done) - before <= 2 * MOST
        assert done == list(range(len(done)))
    while loop.turn():
        pass
    assert done == list(range(came))


def test_waiting_work_is_not_overtaken() -> None:
    start_limiter, loop = bench()
    done: list[int] = []
    for n in range(MOST + 1):
        start_limiter.submit(loop, partial(done.append, n))
    start_limiter.refill()
    start_limiter.submit(loop, partial(done.append, MOST + 1))
    assert done == list(range(MOST))
    loop.turn()
    assert done == list(range(MOST + 2))


def test_work_that_fails_does_not_keep_the_rest_waiting() -> None:
    start_limiter, loop = bench()
    done: list[int] = []
    for n in range(4 * MOST):
        fails = n == MOST
        start_limiter.submit(loop, (lambda: 1 / 0) if fails else partial(done.append, n))  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError):
        loop.turn()
    while loop.turn():
        pass
    assert done == [n for n in range(4 * MOST) if n != MOST]


def test_work_that_brings_work_lets_it_wait_behind_the_others() -> None:
    start_limiter, loop = bench()
    done: list[str] = []
    for _ in range(MOST):
        start_limiter.submit(loop, lambda: None)
    start_limiter.submit(loop, lambda: start_limiter.submit(loop, partial(done.append, "brought")))
    start_limiter.submit(loop, partial(done.append, "before"))
    while loop.turn():
        pass
    assert done == ["before", "brought"]


@pytest.mark.parametrize(
    ("seconds", "times"), [(LONG_TURN, 1), (2.5 * LONG_TURN, 2.5), (60.0, MAX_TURNS)]
)
def test_after_a_long_turn_as_many_more_start(seconds: float, times: float) -> None:
    """Where each turn is long, requests would else wait for many turns."""
    start_limiter, loop = bench()
    done: list[int] = []
    for n in range(100 * MOST):
        start_limiter.submit(loop, partial(done.append, n))
    begun = len(done)
    for _ in range(3):  # each turn counts by itself
        loop.now += seconds
        loop.turn()
        begun += int(times * MOST)
        assert len(done) == begun
    loop.turn()
    assert len(done) == begun + MOST


def test_work_that_causes_more_later_counts_for_more() -> None:
    """At once, and where it has waited."""
    start_limiter, loop = bench()
    done: list[int] = []

    def work(n: int) -> None:
        done.append(n)
        start_limiter.charge(MOST - 2)

    for n in range(3 * MOST):
        start_limiter.submit(loop, partial(work, n))
    begun = 2  # the second exceeds the limit
    assert len(done) == begun
    while loop.turn():
        begun = min(begun + 2, 3 * MOST)
        assert len(done) == begun
    assert done == list(range(3 * MOST))


def test_charges_between_turns_count_in_the_next_turn_but_never_stop_it() -> None:
    start_limiter, loop = bench()
    done: list[int] = []
    for n in range(100 * MOST):
        start_limiter.submit(loop, partial(done.append, n))
    begun = len(done)
    for charged, starts in ((1, MOST - 1), (0, MOST), (100 * MOST, 1), (0, MOST)):
        start_limiter.charge(charged)
        start_limiter.refill()
        loop.turn()
        begun += starts
        assert len(done) == begun


def test_a_listener_that_fails_keeps_no_work_waiting() -> None:
    loop: Any = Loop()
    start_limiter = StartLimiter(MOST, lambda: 1 / 0)  # type: ignore[arg-type]
    done: list[int] = []
    for n in range(4 * MOST):
        start_limiter.submit(loop, partial(done.append, n))
    loop.now += 1
    with pytest.raises(ZeroDivisionError):
        loop.turn()
    while loop.turn():
        pass
    assert done == list(range(4 * MOST))


@pytest.mark.parametrize(
    ("waited", "turn", "is_late"),
    [
        (LATE_SECONDS + 0.001, LATE_TURN + 0.001, True),
        (LATE_SECONDS - 0.001, LATE_TURN + 0.001, False),
        (LATE_SECONDS + 0.001, LATE_TURN - 0.001, False),
    ],
)
def test_it_reports_long_waits_in_long_turns(waited: float, turn: float, is_late: bool) -> None:
    late: list[float] = []
    loop: Any = Loop()
    start_limiter = StartLimiter(MOST, lambda: late.append(loop.now))
    for _ in range(100 * MOST):
        start_limiter.submit(loop, lambda: None)
    loop.now = waited - turn
    loop.turn()
    late.clear()
    loop.now = waited
    loop.turn()
    assert late == [loop.now] * is_late


async def test_a_router_whose_requests_start_late_reads_in_turns(harness: Harness) -> None:
    router = await harness.router(await harness.engine())
    told: list[bool] = []
    rotation = router.router.connections.read_rotation

    def answering() -> list[Any]:
        told.append(True)
        return []

    rotation._answering = answering
    router.router.clients.start_limiter._on_late()
    assert told


async def test_a_tls_handshake_counts_as_several_starts(harness: Harness) -> None:
    for tls, starts in ((False, 1), (True, 1 + HANDSHAKE_STARTS)):
        engine = await harness.engine(tls=tls)
        router = await harness.router(engine)
        engine.answer_all(lambda call: call.send(OK))
        start_limiter = router.router.clients.start_limiter
        await router.is_quiet()
        start_limiter._waiting.append((lambda: None, 0, 0.0))  # so that nothing is refilled
        for expected in (starts, 1):  # the second one finds a connection
            start_limiter._left = 100
            assert (await router.ask(COMPLETIONS, completion())).status == 200
            assert start_limiter._left == 100 - expected
        start_limiter._waiting.clear()


async def test_a_router_renews_it(harness: Harness) -> None:
    router = await harness.router(await harness.engine())
    start_limiter = router.router.clients.start_limiter
    start_limiter._left = 0
    await eventually(lambda: start_limiter._left)


def test_under_load_work_waits_only_where_a_turn_has_had_enough() -> None:
    """However long ago time has passed."""
    start_limiter, loop = bench()
    done: list[int] = []
    waited = 0
    for n in range(100 * MOST):  # one in each turn
        start_limiter.submit(loop, partial(done.append, n))
        waited += len(done) <= n
        loop.turn()
    assert done == list(range(100 * MOST))
    assert waited <= 100
