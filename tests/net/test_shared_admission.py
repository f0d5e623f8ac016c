"""Processes of one router let requests in together: no more than the limits, and all in turn."""

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.candidate import Candidate
from router.core.errors import QueueFull
from router.core.limits.admission import GONE, IN_FLIGHT, WAITING, Ticket
from router.core.limits.places import Place
from router.core.membership.roster import Roster
from router.core.shared_memory import WAIT_SECONDS
from router.core.values import Endpoint, Role
from router.net.limits import admission_gate
from router.net.limits.admission_gate import AdmissionGate, AdmissionLimits
from router.net.limits.start_limiter import StartLimiter
from router.net.processes.shared_state import SharedState
from tests.net.crowd import FixedEngines, Uncounted, Unheard
from tests.net.harness import eventually

ENGINES = [Endpoint(f"http://d{number}", Role.DECODE) for number in range(2)]

PROCESSES = 3


class Process:
    """One of those that share; its requests are for the one engine, for the other, or for both."""

    def __init__(self, state: SharedState, number: int, limits: AdmissionLimits) -> None:
        context = state.join(number, 1 + number)
        context.column.place({endpoint: row for row, endpoint in enumerate(ENGINES)})
        self.engines = [
            Candidate(endpoint, row, context.column.load(endpoint))
            for row, endpoint in enumerate(ENGINES)
        ]
        groups = {"0": self.engines[:1], "1": self.engines[1:], "": self.engines}
        self.gate = AdmissionGate(
            limits,
            FixedEngines(groups),
            StartLimiter(1000),
            Uncounted(),
            context.column.admitted,
            context.column.queue_share,
        )
        self.tickets: list[Ticket] = []

    def come(self, group: str = "", tenant: str = "t", waiter: Unheard | None = None) -> Ticket:
        """A request comes."""
        ticket = Ticket(tenant, 0, 1.0, 0.0, group, Place(self.gate.places))
        self.tickets.append(ticket)
        self.gate.enter(ticket, waiter or Unheard())
        return ticket

    def end(self) -> None:
        """The first of those in flight ends."""
        for ticket in self.tickets:
            if ticket.state == IN_FLIGHT:
                self.tickets.remove(ticket)
                self.gate.leave(ticket)
                return

    def give_up(self) -> None:
        """The first of those that wait leaves."""
        for ticket in self.tickets:
            if ticket.state == WAITING:
                self.tickets.remove(ticket)
                self.gate.leave(ticket)
                return

    def do(self, step: str) -> None:
        """One of `STEPS`."""
        if step == "end":
            self.end()
        elif step == "give up":
            self.give_up()
        else:
            self.come(step.removeprefix("come").strip())

    def look(self) -> None:
        """It looks whether others have given places back."""
        self.gate._let_in()

    @property
    def in_flight(self) -> int:
        return self.gate.admission.in_flight


@contextmanager
def processes(
    in_flight: int | None, per_engine: int | None, queue_size: int = 1000
) -> Iterator[list[Process]]:
    limits = AdmissionLimits(in_flight, per_engine, queue_size, math.inf, b"", "none")
    state = SharedState(PROCESSES, Roster(8, 60.0))
    made = [Process(state, number, limits) for number in range(PROCESSES)]
    try:
        yield made
    finally:
        for process in made:
            process.gate.close()
        state.close()


@pytest.fixture(autouse=True)
def _slow_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes only when it is read: no process counts as hanging because the machine stalls."""
    monkeypatch.setattr(admission_gate, "_now", partial(next, count(100.0, 1e-5)))


BOTH_KINDS = pytest.mark.parametrize(("in_flight", "per_engine"), [(2, None), (None, 1)])


@BOTH_KINDS
async def test_a_place_that_one_process_gives_back_another_takes(
    in_flight: int | None, per_engine: int | None
) -> None:
    with processes(in_flight, per_engine) as (one, two, _):
        one.come()
        one.come()
        late = two.come()
        assert (one.in_flight, two.in_flight, late.state) == (2, 0, WAITING)
        one.end()
        await eventually(lambda: late.state == IN_FLIGHT)
        assert (one.in_flight, two.in_flight) == (1, 1)


@BOTH_KINDS
async def test_the_process_with_the_fewest_requests_takes_a_freed_place(
    in_flight: int | None, per_engine: int | None
) -> None:
    with processes(in_flight, per_engine) as (one, two, _):
        one.come()
        one.come()
        own, late = one.come(), two.come()
        two.look()
        one.end()
        one.look()
        assert (own.state, late.state) == (WAITING, WAITING)
        await eventually(lambda: late.state == IN_FLIGHT)
        two.end()
        await eventually(lambda: own.state == IN_FLIGHT)


async def test_a_request_waiting_for_an_engine_blocks_no_place_elsewhere() -> None:
    """It could not use one: of the limit of all only those that an engine has room for wait."""
    with processes(4, 2) as (one, two, _):
        for process in (one, two):
            process.come("0")
        late = one.come("0")
        one.look()
        two.come("1")
        two.come("1")
        assert (one.in_flight, two.in_flight, late.state) == (1, 3, WAITING)
        two.end()
        one.look()
        assert (one.in_flight, two.in_flight, late.state) == (2, 2, IN_FLIGHT)


@pytest.mark.parametrize(("in_flight", "per_engine"), [(8, None), (None, 4)])
async def test_places_that_get_free_together_are_divided_at_once(
    in_flight: int | None, per_engine: int | None
) -> None:
    """Not all to the process that looks first, nor one at each look: an engine that has joined, or
    has ended all that it had, would stay half empty for tenths of a second."""
    with processes(in_flight, per_engine) as (one, two, _):
        for _ in range(12):
            one.come()
            two.come()
        one.look()
        two.look()
        for process in (one, two):
            for _ in range(process.in_flight):
                process.end()
        one.look()
        two.look()
        assert (one.in_flight, two.in_flight) == (4, 4)


async def test_a_request_waiting_for_one_engine_reserves_no_place_on_another() -> None:
    with processes(9, 1) as (one, two, _):
        one.come("0")
        late = two.come("0")
        two.look()
        assert one.come("1").state == IN_FLIGHT
        assert late.state == WAITING


async def test_a_queue_is_full_when_as_many_wait_in_all_processes_as_may() -> None:
    with processes(0, None, queue_size=6) as (one, two, _):
        for _ in range(4):
            one.come()
        two.come()
        two.come()
        for full in (one, two):
            with pytest.raises(QueueFull):
                full.come()
        one.give_up()
        assert two.come().state == WAITING


async def test_a_process_returns_its_borrowed_share() -> None:
    """A tenant that has filled the whole queue by one process leaves room in the others."""
    with processes(0, None, queue_size=6) as (one, two, three):
        waiters = [Unheard() for _ in range(6)]
        greedy = [one.come(tenant="greedy", waiter=waiter) for waiter in waiters]
        polite = [process.come(tenant="polite") for process in (two, two, three)]
        await eventually(lambda: one.gate.admission.waiting == 3)
        assert [each.state for each in polite] == [WAITING] * 3
        assert [each.state for each in greedy] == [WAITING] * 3 + [GONE] * 3
        await eventually(lambda: [len(each.refusals) for each in waiters] == [0] * 3 + [1] * 3)
        assert all(isinstance(each.refusals[0], QueueFull) for each in waiters[3:])


async def test_a_reload_to_a_shorter_queue_drops_no_waiting_request() -> None:
    with processes(0, None, queue_size=6) as (one, two, _):
        waiting = [one.come() for _ in range(5)]
        for process in (one, two):
            process.gate.configure(replace(process.gate.limits, queue_size=3))
        one.gate._sweep()
        assert [each.state for each in waiting] == [WAITING] * 5
        with pytest.raises(QueueFull):
            one.come()
        for _ in range(5):
            one.give_up()
        waiting = [one.come() for _ in range(3)]
        two.come()
        await eventually(lambda: waiting[2].state == GONE)  # those that came later keep to it


async def test_hanging_process_keeps_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(admission_gate, "_now", lambda: now)
    with processes(1, None) as (one, two, _):
        one.come()
        own = one.come()
        two.come()
        two.look()
        one.end()
        one.look()
        assert own.state == WAITING
        now += WAIT_SECONDS + 0.01
        one.look()
        assert own.state == IN_FLIGHT


STEPS = st.tuples(
    st.integers(0, PROCESSES - 1),
    st.sampled_from(("come", "come 0", "come 1", "end", "end", "give up")),
)


@pytest.mark.parametrize(
    ("in_flight", "per_engine"), [(3, None), (1, None), (None, 2), (None, 1), (3, 2)]
)
@given(steps=st.lists(STEPS, max_size=60), chance=st.randoms(use_true_random=False))
def test_no_limit_is_exceeded_and_no_request_waits_beside_a_free_place(
    in_flight: int | None, per_engine: int | None, steps: list[tuple[int, str]], chance: Random
) -> None:
    """For any arrivals and ends, in any order of the processes."""

    async def play() -> None:
        with processes(in_flight, per_engine) as made:
            for number, step in steps:
                made[number].do(step)
                for process in chance.sample(made, PROCESSES):
                    process.look()
                    assert all(number >= 0 for number in rooms(made, in_flight, per_engine))
                # A place may pass several processes until the one with the fewest requests has it.
                for process in made * PROCESSES:
                    process.look()
                check(made, rooms(made, in_flight, per_engine))

    asyncio.run(play())


def rooms(made: list[Process], in_flight: int | None, per_engine: int | None) -> list[float]:
    """How many more may be served: on each engine, and in all."""
    taken = [
        sum(engine.load.own.admitted.own for engine in counts)
        for counts in zip(*[process.engines for process in made], strict=True)
    ]
    left = [math.inf if per_engine is None else per_engine - each for each in taken]
    total = sum(process.in_flight for process in made)
    return [*left, math.inf if in_flight is None else in_flight - total]


def check(made: list[Process], left: list[float]) -> None:
    """No request waits that an engine could take."""
    *engines, total = left
    free = {"0": engines[0], "1": engines[1], "": max(engines)}
    for process in made:
        for group in process.gate.admission.groups:
            assert total == 0 or free[str(group)] == 0
