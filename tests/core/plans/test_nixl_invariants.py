"""Invariants of every dialogue of the nixl plan, for any answers of engines."""

import itertools
from collections.abc import Callable, Sequence

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.errors import NoEngine, RouterError
from router.core.plans.nixl import nixl
from router.core.plans.steps import Call, Check, Lease, Plan, Retry, Step, Stream
from router.core.retry import ATTEMPTS
from router.core.values import Endpoint, Role
from tests.core.fixtures import (
    BROKEN,
    D0,
    D1,
    D2,
    D3,
    D4,
    NO_ENGINE,
    P0,
    P1,
    P2,
    REFUSED,
    RESET,
    SILENT,
    reply,
)
from tests.core.plans.conversation import Books
from tests.core.plans.nixl_dialogue import FACTS, prefilled

PREFILL_ENGINES = (P0, P1, P2)
DECODE_ENGINES = (D0, D1, D2, D3, D4)
MAX_STEPS = 60
"""Two rounds of two prefill engines and three decode engines take about half of that."""

FAILURES = (REFUSED, RESET, BROKEN, SILENT)
WITHOUT_REFERENCE = (reply(200, b"{}"), reply(400), reply(500))

Choose = Callable[[Sequence[object], str], object]
"""Picks one of several answers; the text says to what."""


class Shell(Books):
    """Answers a plan's steps as `choose` likes, and watches what the plan does."""

    def __init__(self, choose: Choose, prefills: int, decodes: int) -> None:
        super().__init__()
        self._choose = choose
        self._engines = {
            Role.PREFILL: PREFILL_ENGINES[:prefills],
            Role.DECODE: DECODE_ENGINES[:decodes],
        }
        self._references = 0
        self._spent: set[bytes] = set()
        self._excluded: frozenset[Endpoint] = frozenset()
        self._may_have_seen: set[Endpoint] = set()
        self._has_refused: set[Endpoint] = set()
        self._computes = True

    def play(self, plan: Plan) -> None:
        """Run the plan to its end, keeping the books."""
        try:
            step = next(plan)
            for _ in range(MAX_STEPS):
                self.check(step)
                answer = self._answer_to(step)
                self.answer(step, answer)
                step = plan.throw(answer) if isinstance(answer, NoEngine) else plan.send(answer)
        except (StopIteration, RouterError):
            self.check_end()
            assert len(self._may_have_seen) <= ATTEMPTS, "a deadly request meets too many engines"
            assert len(self._has_refused) <= ATTEMPTS, "a client waits for too many engines"
            assert self._references <= 4, "the prompt is prefilled too often"
        else:
            raise AssertionError(f"not over after {MAX_STEPS} steps")

    def _answer_to(self, step: Step) -> object:
        match step:
            case Check():
                return self._choose((None, NO_ENGINE), f"check {step.role}")
            case Retry():
                return self._choose((True, False), "retry")
            case Lease():
                return self._lease(step)
            case Call():
                self._references += 1
                reference = prefilled(b'{"number":%d}' % self._references)
                return self._choose((reference, *WITHOUT_REFERENCE, *FAILURES), "call")
            case Stream():
                return self._stream(step)
        return None

    def _lease(self, step: Lease) -> object:
        if step.role is Role.DECODE:
            assert step.exclude >= self._excluded, "an engine that was excluded may come back"
            self._excluded |= step.exclude
        self._computes = step.computes
        free = [engine for engine in self._engines[step.role] if engine not in step.exclude]
        return self._choose((*free, NO_ENGINE), f"lease {step.role}")

    def _stream(self, step: Stream) -> object:
        kept = [reply(status) for status in sorted(step.keep)]
        # With `hold` an error event of any status is a result too.
        events = [reply(400)] if step.hold else []
        outcome = self._choose((None, *kept, *events, *FAILURES), "stream")
        reached = self._has_refused if outcome is REFUSED else self._may_have_seen
        reached.add(step.endpoint)
        reference = orjson.loads(step.body).get("kv_transfer_params")
        assert self._computes is (reference is None), "a prompt is computed and not counted"
        if reference is not None:
            assert not step.replay, "the shell may send a reference twice by itself"
            assert step.hold, "an error event may reach the client"
            key = orjson.dumps(reference)
            assert key not in self._spent, f"{reference} is used a second time"
            if outcome is not REFUSED:
                self._spent.add(key)
        return outcome


def every(play: Callable[[Choose], None]) -> int:
    """Play once for each sequence of choices; how many there were."""
    path: list[int] = []
    sizes: list[int] = []

    def choose(answers: Sequence[object], _text: str) -> object:
        place = len(sizes)
        sizes.append(len(answers))
        if place == len(path):
            path.append(0)
        return answers[path[place]]

    for count in itertools.count(1):
        sizes.clear()
        play(choose)
        while path and path[-1] == sizes[len(path) - 1] - 1:
            path.pop()
        if not path:
            return count
        path[-1] += 1
    raise AssertionError("unreachable")


def test_every_dialogue_of_a_small_fleet_keeps_references_and_leases() -> None:
    played = every(lambda choose: Shell(choose, prefills=1, decodes=2).play(nixl(FACTS)))
    assert played > 1000


@given(st.data())
@settings(max_examples=5 * settings().max_examples)
def test_no_reference_is_reused_and_no_lease_lost(data: st.DataObject) -> None:
    def choose(answers: Sequence[object], text: str) -> object:
        return data.draw(st.sampled_from(answers), text)

    Shell(choose, prefills=3, decodes=5).play(nixl(FACTS))
