"""Any order of events: admission is bounded, counted and work-conserving."""

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from router.core.candidate import Candidate
from router.core.limits.admission import GONE, IN_FLIGHT, WAITING, Admission, Ticket
from router.core.limits.places import Place, Places
from tests.core.limits.admissions import KEYS, view

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
        """A request; no engine serves the model `?`."""
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
        """It ends, or its client disconnects; perhaps reported twice."""
        leaves = data.draw(st.sampled_from(self.tickets))
        self.admission.leave(leaves)
        assert leaves.place is not None
        leaves.place.move(None)
        self.let_in()

    @rule(limit=st.integers(0, 4))
    def change_limit(self, limit: int) -> None:
        """Engines join and leave."""
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
