"""Requests of groups whose engines have room pass those that wait for others."""

from collections import Counter
from collections.abc import Callable, Hashable

from router.core.limits.admission import IN_FLIGHT, WAITING, Admission
from tests.core.limits.admissions import full, served, ticket


def only(*groups: str) -> Callable[[Hashable], bool]:
    """Room for these groups."""
    return lambda group: group in groups


def test_requests_with_room_overtake_requests_without() -> None:
    admission = Admission(10)
    blocked, free = ticket("a", -1, group="m"), ticket("a", 1, group="n")
    admission.offer(blocked, 1, only())
    admission.offer(free, 1, only())
    assert admission.next(1, only()) is None
    assert admission.next(1, only("n")) is free
    assert admission.next(1, only("m")) is None, "the limit of all"
    admission.leave(free)
    assert admission.next(1, only("m")) is blocked


def test_the_groups_that_wait_are_known() -> None:
    admission = full()
    waiting = [ticket(group=group) for group in ("x", "x", "y")]
    for each in waiting:
        admission.offer(each, 1)
    assert admission.groups == {"x", "y"}
    admission.leave(waiting[2])
    assert admission.groups == {"x"}


def test_groups_with_the_same_engines_are_checked_together() -> None:
    listed = {"n"}
    admission = Admission(10, lambda group: group if group in listed else "?")
    for group in ("a", "b", "n", "c"):
        admission.offer(ticket(group=group), 0)
    assert admission.groups == {"?", "n"}
    asked: Counter[Hashable] = Counter()

    def no_room(group: Hashable) -> bool:
        asked[group] += 1
        return False

    assert admission.next(1, no_room) is None
    assert asked == {"?": 1, "n": 1}
    listed.add("b")
    let_in = admission.next(1, only("b"))
    assert let_in is not None
    assert let_in.group == "b"


def test_a_new_request_overtakes_only_requests_without_room() -> None:
    admission = Admission(10)
    admission.offer(ticket("a", group="m"), 2, only())
    free = ticket("b", group="n")
    assert admission.offer(free, 2, only("n")) is None
    assert free.state == IN_FLIGHT
    late = ticket("b", group="n")
    admission.offer(late, 2, only("m", "n"))
    assert late.state == WAITING


def test_one_tenants_models_are_one_queue_of_it() -> None:
    admission = full(4)
    greedy = [
        ticket("greedy", since=float(number), group=group) for number, group in enumerate("mnm")
    ]
    for each in (*greedy, ticket("other", group="m")):
        admission.offer(each, 1)
    assert admission.offer(ticket("polite", group="n"), 1) is greedy[2]
    assert greedy[0].state == greedy[1].state == WAITING


def test_of_one_tenants_models_the_first_to_come_goes_first() -> None:
    admission = full()
    tickets = [ticket(since=float(number), group=group) for number, group in enumerate("nmmn")]
    for each in tickets:
        admission.offer(each, 1)
    assert served(admission, 4) == tickets


def test_a_request_for_a_full_model_is_not_behind_one_tenants_whole_queue() -> None:
    """While it is full, others continue, and so does virtual time."""
    admission = full()
    for _ in range(10):
        admission.offer(ticket("first", group="m"), 1)
        admission.offer(ticket("busy", group="n", cost=1000.0), 1)
    for _ in range(10):
        admission.in_flight = 0
        assert admission.next(1, only("n")) is not None
    admission.offer(ticket("new", group="m"), 1)
    assert "new" in {each.key for each in served(admission, 2)}
