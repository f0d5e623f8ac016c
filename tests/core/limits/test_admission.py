"""Admission: order and refusals."""

from collections import Counter
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.limits.admission import GONE, IN_FLIGHT, WAITING, Admission
from tests.core.limits.admissions import KEYS, full, served, ticket


def test_below_the_limit_everybody_is_let_in_at_once() -> None:
    admission = Admission(0)
    tickets = [ticket() for _ in range(3)]
    for each in tickets:
        assert admission.offer(each, 3) is None
    assert [each.state for each in tickets] == [IN_FLIGHT] * 3
    assert admission.in_flight == 3
    late = ticket()
    assert admission.offer(late, 3) is late
    assert late.state == GONE


def test_no_request_overtakes_waiting_ones() -> None:
    admission = full()
    first, second = ticket(), ticket()
    admission.offer(first, 1)
    admission.in_flight = 0
    admission.offer(second, 1)
    assert (first.state, second.state) == (WAITING, WAITING)
    assert admission.next(1) is first


def test_of_one_key_the_first_to_come_goes_first() -> None:
    admission = full()
    tickets = [ticket() for _ in range(10)]
    for each in tickets:
        admission.offer(each, 1)
    assert served(admission, 10) == tickets
    assert admission.next(5) is None


def test_lower_numbers_go_first_as_in_vllm() -> None:
    admission = full()
    for priority in (5, -1, 0, 1000, 100, -1000):
        admission.offer(ticket("k", priority), 1)
    assert [each.priority for each in served(admission, 6)] == [-100, -1, 0, 5, 100, 100]


def test_a_tenant_with_one_request_does_not_wait_for_another_ones_hundred() -> None:
    admission = full()
    for _ in range(90):
        admission.offer(ticket("greedy"), 1)
    served(admission, 10)
    admission.offer(ticket("polite"), 1)
    assert "polite" in {each.key for each in served(admission, 2)}


def test_places_are_shared_by_tokens() -> None:
    admission = full()
    for _ in range(40):
        admission.offer(ticket("long", cost=3.0), 1)
        admission.offer(ticket("short", cost=1.0), 1)
    number = Counter(each.key for each in served(admission, 40))
    assert number == {"short": 30, "long": 10}


def test_a_tenant_whose_requests_come_one_by_one_is_still_charged_for_each() -> None:
    admission = full()
    begun: Counter[object] = Counter()
    costs = {"long": 3.0, "short": 1.0}
    for key, cost in costs.items():
        admission.offer(ticket(key, cost=cost), 1)
    for _ in range(40):
        [each] = served(admission, 1)
        begun[each.key] += 1
        admission.offer(ticket(str(each.key), cost=each.cost), 1)
    assert begun == {"short": 30, "long": 10}


def test_a_tenant_that_was_away_has_saved_nothing_up() -> None:
    admission = full()
    for _ in range(60):
        admission.offer(ticket("busy"), 1)
    served(admission, 20)
    for _ in range(30):
        admission.offer(ticket("back"), 1)
    number = Counter(each.key for each in served(admission, 20))
    assert abs(number["busy"] - number["back"]) <= 2


def test_without_competition_past_charges_are_dropped() -> None:
    admission = full()
    admission.offer(ticket("a", cost=1000.0), 1)
    served(admission, 1)
    assert admission.accounts == 1
    admission.in_flight = 0
    admission.offer(ticket("a"), 1)
    assert admission.accounts == 0


def test_in_a_full_queue_the_newest_of_the_longest_makes_room() -> None:
    admission = full(3)
    greedy = [ticket("greedy") for _ in range(3)]
    for each in greedy:
        assert admission.offer(each, 1) is None
    polite = ticket("polite")
    assert admission.offer(polite, 1) is greedy[2]
    assert (greedy[2].state, polite.state) == (GONE, WAITING)
    another = ticket("greedy")
    assert admission.offer(another, 1) is another
    equal = ticket("polite")
    assert admission.offer(equal, 1) is equal


def test_a_queue_may_be_shorter_for_new_requests() -> None:
    admission = full(3)
    first, late = ticket(), ticket()
    assert admission.offer(first, 1, most=1) is None
    assert admission.offer(late, 1, most=1) is late
    assert admission.offer(ticket(), 1, most=2) is None
    assert admission.waiting == 2


def test_a_queue_that_is_too_long_is_shortened_as_if_others_came() -> None:
    admission = full(9)
    polite, low = ticket("polite"), ticket("polite", 1)
    greedy = [ticket("greedy") for _ in range(3)]
    for each in (polite, *greedy, low):
        admission.offer(each, 1)
    assert admission.refuse_beyond(5) is None
    assert [admission.refuse_beyond(2) for _ in range(4)] == [low, greedy[2], greedy[1], None]
    assert [each.state for each in (polite, greedy[0])] == [WAITING] * 2


def test_in_a_full_queue_a_lower_priority_makes_room() -> None:
    admission = full(1)
    low, high = ticket("a", 1), ticket("a", 0)
    admission.offer(low, 1)
    assert admission.offer(high, 1) is low
    assert admission.offer(low, 1) is low


def test_a_disconnected_request_is_not_admitted_and_frees_its_place_once() -> None:
    admission = full()
    stays, leaves = ticket(), ticket()
    admission.offer(leaves, 1)
    admission.offer(stays, 1)
    for _ in range(2):
        admission.leave(leaves)
    assert admission.waiting == 1
    assert served(admission, 1) == [stays]
    for _ in range(2):
        admission.leave(stays)
    assert admission.in_flight == 0


def test_a_wait_beyond_the_limit_ends() -> None:
    admission = full()
    tickets = [ticket(key, since=float(since)) for since, key in enumerate("abab")]
    for each in tickets:
        admission.offer(each, 1)
    assert admission.longest_wait(5.0) == 5.0
    assert admission.came_before(2.0) == tickets[:2]
    assert [each.state for each in tickets] == [GONE, GONE, WAITING, WAITING]
    assert admission.came_before(2.0) == []
    assert admission.came_before(9.0) == tickets[2:]
    assert admission.longest_wait(5.0) == 0.0


def test_clients_that_name_ever_new_keys_are_forgotten() -> None:
    admission = full(10)
    names = count()
    for _ in range(10):
        admission.offer(ticket(str(next(names)), cost=1e6), 1)
    for _ in range(500):
        served(admission, 1)
        admission.offer(ticket(str(next(names)), cost=1e6), 1)
        assert admission.accounts <= 4 * 11 + 1


@given(
    st.lists(st.tuples(KEYS, st.floats(1, 50)), min_size=2, max_size=80),
    st.integers(1, 60),
)
def test_tenants_that_both_wait_get_the_same_work_up_to_one_request_each(
    requests: list[tuple[str, float]], number: int
) -> None:
    """The bound of start-time fair queueing, for all pairs while both have requests waiting."""
    admission = full(1000)
    waiting: Counter[object] = Counter()
    largest: dict[object, float] = {}
    for key, cost in requests:
        admission.offer(ticket(key, cost=cost), 1)
        waiting[key] += 1
        largest[key] = max(largest.get(key, 0.0), cost)
    work: Counter[object] = Counter()
    for _ in range(min(number, len(requests))):
        [each] = served(admission, 1)
        waiting[each.key] -= 1
        work[each.key] += each.cost  # type: ignore[assignment]
        if not all(waiting.values()):
            break
        for a in waiting:
            for b in waiting:
                assert work[a] - work[b] <= largest[a] + largest[b] + 1e-6


@pytest.mark.parametrize("size", [0, 1])
def test_without_a_queue_a_request_without_a_place_is_refused(size: int) -> None:
    admission = full(size)
    refused = [admission.offer(ticket(), 1) for _ in range(3)]
    assert len([each for each in refused if each is not None]) == 3 - size


@pytest.mark.parametrize(("answers", "order"), [(0.0, "abababab"), (3.0, "abbbbabb")])
def test_a_tenant_of_long_answers_pays_for_them_when_they_end(answers: float, order: str) -> None:
    admission = full()
    for key in "aaaaabbbbbbb":
        admission.offer(ticket(key), 1)
    begun = ""
    admission.in_flight = 0
    for _ in order:
        it = admission.next(1)
        assert it is not None
        begun += str(it.key)
        admission.leave(it, answers if it.key == "a" else 0.0)
    assert begun == order


def test_the_charge_of_an_idle_tenant_is_dropped() -> None:
    admission = Admission(9)
    first = ticket()
    admission.offer(first, 1)
    admission.leave(first, 100.0)
    assert admission.accounts == 0


def test_pending_answer_charges_are_bounded() -> None:
    admission = Admission(1)
    tickets = [ticket(str(number)) for number in range(50)]
    for each in tickets:
        admission.offer(each, 50)
    admission.offer(ticket("waits"), 1)
    for each in tickets:
        admission.leave(each, 5.0)
    assert admission.accounts <= 8
