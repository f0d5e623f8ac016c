"""Who is let in, in which order, and who is refused."""

from collections import Counter
from collections.abc import Callable, Hashable
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from router.core.limits.admission import GONE, IN_FLIGHT, WAITING, Admission, Ticket
from router.core.limits.places import Place, Places
from router.core.values import Candidate, Endpoint, LocalLoad, Role

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


def test_nobody_overtakes_those_who_wait() -> None:
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


def test_when_nobody_competes_the_past_is_forgotten() -> None:
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


def test_a_queue_may_be_shorter_than_usual_for_who_comes() -> None:
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


def test_who_leaves_is_not_let_in_and_gives_its_place_back_once() -> None:
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


def test_who_has_waited_too_long_waits_no_longer() -> None:
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


def only(*groups: str) -> Callable[[Hashable], bool]:
    """Room for these groups."""
    return lambda group: group in groups


def test_who_has_room_goes_before_who_has_none() -> None:
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


def test_groups_that_the_same_engines_can_take_are_asked_for_together_while_they_can() -> None:
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


def test_who_comes_passes_those_that_have_no_room_and_nobody_else() -> None:
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


def test_who_comes_to_a_full_model_does_not_stand_behind_all_that_it_has_waiting() -> None:
    """While it is full, others go on, and virtual time with them."""
    admission = full()
    for _ in range(10):
        admission.offer(ticket("first", group="m"), 1)
        admission.offer(ticket("busy", group="n", cost=1000.0), 1)
    for _ in range(10):
        admission.in_flight = 0
        assert admission.next(1, only("n")) is not None
    admission.offer(ticket("new", group="m"), 1)
    assert "new" in {each.key for each in served(admission, 2)}


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


ENGINES = range(3)


class Queue(RuleBasedStateMachine):
    """Any order of arrivals, ends, departures and changes of the limit and of the fleet: engines
    that come, go, serve other models, and get requests wherever the policy likes."""

    SIZE = 5

    def __init__(self) -> None:
        super().__init__()
        self.admission = Admission(self.SIZE)
        self.limit = 4
        self.places = Places(2)
        self.fleet = {engine: view(number) for number, engine in enumerate(ENGINES)}
        self.serving = {0: frozenset("m"), 1: frozenset("mn"), 2: frozenset("o")}
        self.tickets: list[Ticket] = []
        self.now = 0.0

    def engines(self, model: object) -> list[Candidate]:
        """Who may take its requests."""
        return [self.fleet[engine] for engine, them in self.serving.items() if model in them]

    def has_room(self, model: object) -> bool:
        """As the router asks."""
        engines = self.engines(model)
        return not engines or self.places.with_room(engines, 0.0) is not None

    def begin(self, begun: Ticket) -> None:
        """It has a place from the start."""
        assert begun.state == IN_FLIGHT
        assert begun.place is not None
        if (engine := self.places.with_room(self.engines(begun.group), 0.0)) is not None:
            begun.place.move(engine.load)

    def let_in(self) -> None:
        """As the router does after each change."""
        while (begun := self.admission.next(self.limit, self.has_room)) is not None:
            alike = [each for each in self.tickets if each.state == WAITING]
            for name in ("key", "priority", "group"):
                alike = [each for each in alike if getattr(each, name) == getattr(begun, name)]
            assert all(each.since >= begun.since for each in alike), "first come, first served"
            with_room = [each for each in self.tickets if each.state == WAITING]
            with_room = [each for each in with_room if self.has_room(each.group)]
            assert all(each.priority >= begun.priority for each in with_room), "priority"
            self.begin(begun)

    @rule(
        key=KEYS,
        priority=st.integers(-2, 2),
        cost=st.floats(1, 1e6),
        model=st.sampled_from("mno?"),
    )
    def come(self, key: str, priority: int, cost: float, model: str) -> None:
        """A request; nobody serves the model `?`."""
        self.now += 1.0
        new = Ticket(key, priority, cost, self.now, model, Place(self.places))
        self.tickets.append(new)
        refused = self.admission.offer(new, self.limit, self.has_room)
        assert refused is None or refused.state == GONE
        if new.state == IN_FLIGHT:
            self.begin(new)

    @precondition(lambda self: any(each.state == IN_FLIGHT for each in self.tickets))
    @rule(data=st.data())
    def lease(self, data: st.DataObject) -> None:
        """Its plan chooses an engine: the first try, or another one."""
        running = [each for each in self.tickets if each.state == IN_FLIGHT]
        place = (chosen := data.draw(st.sampled_from(running))).place
        assert place is not None
        engines = self.engines(chosen.group)
        free = [each for each in engines if each.endpoint not in place.full(engines, 0.0)]
        if engines:
            place.move(data.draw(st.sampled_from(free or engines)).load)
        self.let_in()

    @rule(
        engine=st.sampled_from(ENGINES),
        models=st.frozensets(st.sampled_from("mno")),
        new=st.booleans(),
    )
    def change_fleet(self, engine: int, models: frozenset[str], new: bool) -> None:
        """An engine serves others (none: it is gone), or another one has come in its place."""
        self.serving[engine] = models
        if new:
            self.fleet[engine] = view(engine)
        self.let_in()

    @rule(number=st.none() | st.integers(1, 3))
    def change_places(self, number: int | None) -> None:
        """The operator gives engines more, or fewer."""
        self.places.per_engine = number
        self.let_in()

    @precondition(lambda self: self.tickets)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """It ends, or its client is gone; perhaps it is told twice."""
        leaves = data.draw(st.sampled_from(self.tickets))
        self.admission.leave(leaves)
        assert leaves.place is not None
        leaves.place.move(None)
        self.let_in()

    @rule(limit=st.integers(0, 4))
    def change_limit(self, limit: int) -> None:
        """Engines come and go."""
        self.limit = limit
        self.let_in()

    @rule(seconds=st.floats(0, 5))
    def expire(self, seconds: float) -> None:
        """The oldest have waited long enough."""
        for each in self.admission.came_before(self.now - seconds):
            assert each.state == GONE

    @invariant()
    def is_bounded_counted_and_work_conserving(self) -> None:
        """Nobody waits while an engine could take it, and no place is lost or taken twice."""
        states = Counter(each.state for each in self.tickets)
        assert self.admission.waiting == states[WAITING] <= self.SIZE
        assert self.admission.in_flight == states[IN_FLIGHT]
        waiting = {each.group for each in self.tickets if each.state == WAITING}
        assert self.admission.in_flight >= self.limit or not any(map(self.has_room, waiting))
        assert self.places.taken <= states[IN_FLIGHT]

    def teardown(self) -> None:
        """Whoever waits is let in at last, and every place comes back."""
        self.limit, self.places.per_engine = 1000, None
        self.let_in()
        assert self.admission.waiting == 0
        for each in self.tickets:
            self.admission.leave(each)
            assert each.place is not None
            each.place.move(None)
        assert self.admission.in_flight == self.places.taken == 0


TestQueue = Queue.TestCase
TestQueue.__doc__ = "What hypothesis tries."


@pytest.mark.parametrize("size", [0, 1])
def test_without_a_queue_who_finds_no_place_is_refused(size: int) -> None:
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


def test_what_a_request_cost_while_nobody_waits_is_forgotten() -> None:
    admission = Admission(9)
    first = ticket()
    admission.offer(first, 1)
    admission.leave(first, 100.0)
    assert admission.accounts == 0


def test_who_pays_at_the_end_is_remembered_within_bounds() -> None:
    admission = Admission(1)
    tickets = [ticket(str(number)) for number in range(50)]
    for each in tickets:
        admission.offer(each, 50)
    admission.offer(ticket("waits"), 1)
    for each in tickets:
        admission.leave(each, 5.0)
    assert admission.accounts <= 8
