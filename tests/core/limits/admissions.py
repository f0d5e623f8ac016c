"""Tickets and full queues, for tests."""

from hypothesis import strategies as st

from router.core.candidate import Candidate, LocalLoad
from router.core.limits.admission import Admission, Ticket
from router.core.values import Endpoint, Role

KEYS = st.sampled_from("abc")


def ticket(
    key: str = "a",
    priority: int = 0,
    cost: float = 1.0,
    since: float = 0.0,
    group: str | None = None,
) -> Ticket:
    """A request."""
    return Ticket(key, priority, cost, since, group)


def view(number: int) -> Candidate:
    """An engine."""
    return Candidate(Endpoint(f"http://d{number}", Role.DECODE), number, LocalLoad())


def full(queue_size: int = 100) -> Admission:
    """One in which one request is in flight, which is the limit."""
    admission = Admission(queue_size)
    assert admission.offer(ticket("first"), 1) is None
    return admission


def served(admission: Admission, number: int) -> list[Ticket]:
    """The next that are let in, each when the one before has ended."""
    found = []
    for _ in range(number):
        admission.in_flight = 0
        begun = admission.next(1)
        assert begun is not None
        found.append(begun)
    return found
