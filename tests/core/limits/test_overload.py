"""What admission does for users when more comes than engines can serve, in virtual time."""

from collections import deque
from heapq import heappop, heappush
from itertools import count
from random import Random
from statistics import quantiles

from router.core.limits.admission import IN_FLIGHT, Admission, Ticket

SLOTS = 96
"""Of all engines."""

STEP = 0.025
"""Seconds of a decode step."""

PREFILL = 0.05
"""Seconds from a slot to the first token."""

TOKENS = (24, 40)
"""Of an answer, at least and at most."""

CAPACITY = SLOTS / (PREFILL + sum(TOKENS) / 2 * STEP)
"""Requests per second that the engines can serve."""

PATIENCE = 2.0
"""Seconds: later a first token is of no use."""

SECONDS = 60.0
FILLING = 10.0
"""Of them, until the state is steady."""


class Site:
    """Engines with slots and their own queue, and a router before them that admits as many requests
    as there are slots, or all."""

    def __init__(self, *, admits: bool, queue_seconds: float = 1e9) -> None:
        self.chance = Random(1)
        self.admission = Admission(1000)
        self.limit = SLOTS if admits else 1 << 30
        self.queue_seconds = queue_seconds
        self.now = 0.0
        self.first_tokens: dict[str, list[float]] = {}
        """Seconds until the first token, by tenant."""
        self._running = 0
        self._waiting: deque[Ticket] = deque()
        self._asks_again: set[str] = set()
        self._events: list[tuple[float, int, str, Ticket]] = []
        self._order = count()

    def comes(self, at: float, tenant: str) -> None:
        """A request will come then."""
        ticket = Ticket(tenant, 0, 256.0, at)
        heappush(self._events, (at, next(self._order), "come", ticket))

    def closed_loop(self, tenant: str, streams: int) -> None:
        """So many clients ask again when they are answered."""
        self._asks_again.add(tenant)
        for _ in range(streams):
            self.comes(self.chance.random(), tenant)

    def open_loop(self, rate: float) -> None:
        """So many arrive per second, independent of earlier ones."""
        at = 0.0
        while (at := at + self.chance.expovariate(rate)) < SECONDS:
            self.comes(at, "all")

    def run(self) -> None:
        """Until the time is over."""
        while self._events and self._events[0][0] < SECONDS:
            self.now, _, what, ticket = heappop(self._events)
            if what == "come":
                self._come(ticket)
            else:
                self._end(ticket)
            for late in self.admission.came_before(self.now - self.queue_seconds):
                self._ask_again(late.key)
            while (begun := self.admission.next(self.limit)) is not None:
                self._reach_engine(begun)

    def p99(self, tenant: str) -> float:
        """Of the seconds until the first token."""
        return quantiles(self.first_tokens[tenant], n=100)[98]

    def good(self) -> float:
        """Answers per second, as a share of the capacity, whose first token came in time."""
        good = sum(each < PATIENCE for each in self.first_tokens.get("all", []))
        return good / (SECONDS - FILLING) / CAPACITY

    def _come(self, ticket: Ticket) -> None:
        if self.admission.offer(ticket, self.limit) is ticket:
            self._ask_again(ticket.key)
        elif ticket.state == IN_FLIGHT:
            self._reach_engine(ticket)

    def _reach_engine(self, ticket: Ticket) -> None:
        if self._running < SLOTS:
            self._start(ticket)
        else:
            self._waiting.append(ticket)

    def _start(self, ticket: Ticket) -> None:
        self._running += 1
        first = PREFILL + self.chance.random() * STEP
        if self.now > FILLING:
            found = self.first_tokens.setdefault(str(ticket.key), [])
            found.append(self.now + first - ticket.since)
        end = self.now + first + self.chance.randint(*TOKENS) * STEP
        heappush(self._events, (end, next(self._order), "end", ticket))

    def _end(self, ticket: Ticket) -> None:
        self._running -= 1
        self.admission.leave(ticket)
        self._ask_again(ticket.key)
        if self._waiting:
            self._start(self._waiting.popleft())

    def _ask_again(self, tenant: object) -> None:
        if tenant in self._asks_again:
            self.comes(self.now + 0.01, str(tenant))


def polite_p99(*, greedy: int, admits: bool) -> float:
    """Seconds to the first token of a tenant with 8 streams beside one with so many."""
    site = Site(admits=admits)
    site.closed_loop("polite", 8)
    site.closed_loop("greedy", greedy)
    site.run()
    return site.p99("polite")


def test_beside_a_greedy_tenant_first_tokens_come_within_twice_the_time_of_being_alone() -> None:
    alone, beside, unlimited = (
        polite_p99(greedy=greedy, admits=admits)
        for greedy, admits in ((0, True), (500, True), (500, False))
    )
    print(f"TTFT p99: alone {alone:.3f} s, beside 500 {beside:.3f}, unlimited {unlimited:.3f}")
    assert beside <= 2 * alone
    assert unlimited > 20 * alone


def good(load: float, *, admits: bool) -> float:
    """The share of the capacity that is answered in time."""
    site = Site(admits=admits, queue_seconds=1.0)
    site.open_loop(load * CAPACITY)
    site.run()
    return site.good()


def test_at_twice_the_load_as_much_is_answered_in_time_as_at_best_and_nothing_without() -> None:
    loads = (0.8, 1.0, 1.2, 2.0)
    admitted, unlimited = ([good(load, admits=each) for load in loads] for each in (True, False))
    for load, one, other in zip(loads, admitted, unlimited, strict=True):
        print(f"load {load:g}: {one:.2f} of the capacity in time, without admission {other:.2f}")
    assert admitted[-1] >= 0.95 * max(admitted)
    assert unlimited[-1] < 0.1
