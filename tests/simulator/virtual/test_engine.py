"""The modelled engine: slots, prompts, queue, freezing, dying."""

from itertools import product
from random import Random

import pytest

from router.core.speed.speed_estimator import SpeedEstimator
from router.simulator.virtual.agenda import Agenda
from router.simulator.virtual.engine import VirtualEngine
from router.simulator.virtual.requests import ACCEPTED, NO_ANSWER, Attempt, Stage
from router.simulator.virtual.values import EngineModel, EngineSpec, FaultRates

MODEL = EngineModel(
    max_num_seqs=2,
    step_seconds=1.0,
    prefill_tokens_per_second=100.0,
    max_num_batched_tokens=50,
    max_num_queued_reqs=3,
    kv_tokens=1000,
    jitter=0.0,
)


class Told(Attempt):
    """Records its calls."""

    def __init__(self, prompt: int = 10, output: int = 3) -> None:
        super().__init__(self, 0, 0, prompt, output)
        self.seen: list[tuple[str, float]] = []

    def on_first(self, _attempt: Attempt, now: float) -> None:
        self.seen.append(("first", round(now, 6)))

    def on_end(self, _attempt: Attempt, status: int, now: float) -> None:
        name = {ACCEPTED: "last", NO_ANSWER: "lost"}.get(status, str(status))
        self.seen.append((name, round(now, 6)))


@pytest.fixture
def agenda():
    return Agenda()


@pytest.fixture
def make(agenda):
    """Makes an engine with a pace to count its tokens."""

    def engine(model: EngineModel = MODEL) -> VirtualEngine:
        made = VirtualEngine(model, agenda, Random(1), replicas=1)
        made.speeds = [SpeedEstimator()]
        return made

    return engine


def play(agenda: Agenda, seconds: float) -> None:
    """Let virtual time pass."""
    over: list[float] = []
    agenda.at(seconds, over.append)
    agenda.run_while(lambda: not over, until=1e9)


def test_a_request_is_prefilled_in_a_step_and_then_has_a_token_per_step(make, agenda):
    engine, told = make(), Told(prompt=10, output=3)
    assert engine.submit(told, 0.0) == ACCEPTED
    play(agenda, 9.0)
    assert told.seen == [("first", 1.1), ("last", 3.1)]
    assert engine.speeds[0].counts.counter.tokens == 2  # the leg reports the first one
    assert (engine.running, engine.load, engine.served) == (0, 0, 1)


def test_a_single_token_is_first_and_last(make, agenda):
    told = Told(output=1)
    make().submit(told, 0.0)
    play(agenda, 9.0)
    assert told.seen == [("first", 1.1), ("last", 1.1)]


def test_a_long_prompt_takes_several_steps_and_slows_the_others(make, agenda):
    engine, short, long = make(), Told(prompt=10, output=4), Told(prompt=80, output=1)
    engine.submit(short, 0.0)
    engine.submit(long, 0.0)
    play(agenda, 20.0)
    # 10 + 40 prompt tokens in the first step, 40 and one decoding sequence in the second.
    assert short.seen == [("first", 1.5), ("last", 4.9)]
    assert long.seen == [("first", 2.9), ("last", 2.9)]


def test_a_batch_may_slow_the_step(make, agenda):
    model = EngineModel(step_seconds=1.0, per_sequence_seconds=0.5, jitter=0.0)
    assert model.step(4) == 3.0
    assert model.step(0, 40_000) == 2.0


def test_it_never_runs_more_than_its_slots(make, agenda):
    engine, all_of = make(), [Told() for _ in range(5)]
    assert {engine.submit(told, 0.0) for told in all_of[:3]} == {ACCEPTED}
    play(agenda, 0.5)
    assert (engine.running, engine.load) == (2, 3)
    play(agenda, 1.2)
    assert (engine.gauges.running, engine.gauges.waiting) == (2, 1)
    play(agenda, 50.0)
    assert [told.seen[-1][0] for told in all_of[:3]] == ["last"] * 3
    assert engine.most_running == 2


def test_a_full_queue_refuses(make, agenda):
    engine = make()
    for _ in range(2):
        engine.submit(Told(), 0.0)
    play(agenda, 0.5)
    answers = [engine.submit(Told(), 0.5) for _ in range(4)]
    assert answers == [ACCEPTED] * 3 + [503]


def test_a_full_kv_cache_keeps_requests_waiting(make, agenda):
    engine = make(EngineModel(step_seconds=1.0, kv_tokens=100, jitter=0.0))
    first, second = Told(prompt=60, output=10), Told(prompt=60, output=10)
    engine.submit(first, 0.0)
    engine.submit(second, 0.0)
    play(agenda, 5.0)
    assert (engine.running, engine.load) == (1, 2)
    assert engine.gauges.kv_usage == pytest.approx(0.7)
    play(agenda, 50.0)
    assert second.seen[0][1] > first.seen[-1][1]


def test_a_slower_engine_takes_longer_for_everything(make, agenda):
    engine, told = make(), Told(prompt=10, output=3)
    engine.batch.factor = 8.0
    engine.submit(told, 0.0)
    play(agenda, 50.0)
    assert told.seen == [("first", 8.8), ("last", 24.8)]


def test_a_frozen_engine_goes_on_where_it_was_and_keeps_its_old_gauges(make, agenda):
    engine, told = make(), Told(prompt=10, output=3)
    engine.submit(told, 0.0)
    play(agenda, 1.5)
    engine.frozen_until = 11.5
    assert engine.submit(Told(), 1.6) == ACCEPTED
    play(agenda, 11.0)
    assert (engine.gauges.running, engine.gauges.waiting) == (1, 0)
    assert told.seen == [("first", 1.1)]
    play(agenda, 20.0)
    assert told.seen == [("first", 1.1), ("last", 12.6)]


def test_a_killed_engine_loses_everything_and_refuses_until_it_is_back(make, agenda):
    engine, all_of = make(), [Told() for _ in range(3)]
    for told in all_of:
        engine.submit(told, 0.0)
    play(agenda, 1.5)
    engine.kill(1.5)
    assert [told.seen[-1] for told in all_of] == [("lost", 1.5)] * 3
    assert engine.submit(Told(), 1.6) == NO_ANSWER
    assert (engine.running, engine.load) == (0, 0)
    engine.start()
    again = Told()
    engine.submit(again, 2.0)
    play(agenda, 20.0)
    assert again.seen == [("first", 3.1), ("last", 5.1)]
    assert [len(told.seen) for told in all_of] == [2, 2, 1]


@pytest.mark.parametrize("seconds", [0.5, 1.05, 2.0])
def test_an_aborted_request_frees_its_slot_and_gets_no_more_tokens(make, agenda, seconds):
    engine, leaving, staying = make(), Told(prompt=80, output=9), Told()
    engine.submit(leaving, 0.0)
    engine.submit(staying, 0.0)
    play(agenda, seconds)
    before = list(leaving.seen)
    engine.abort(leaving)
    engine.abort(leaving)
    assert leaving.stage is Stage.ENDED
    play(agenda, 50.0)
    assert leaving.seen == before
    assert staying.seen[-1][0] == "last"
    assert (engine.running, engine.load, engine.gauges.kv_usage) == (0, 0, 0.0)


def test_a_waiting_request_may_be_aborted(make, agenda):
    engine, all_of = make(), [Told() for _ in range(3)]
    for told in all_of:
        engine.submit(told, 0.0)
    play(agenda, 0.5)
    engine.abort(all_of[2])
    play(agenda, 50.0)
    assert [len(told.seen) for told in all_of] == [2, 2, 0]


def leave(engine: VirtualEngine, told: Told) -> None:
    engine.abort(told)


def die(engine: VirtualEngine, _told: Told) -> None:
    engine.kill(0.5)


def stay(_engine: VirtualEngine, _told: Told) -> None:
    """It gets a slot in time."""


@pytest.mark.parametrize("end", [leave, die, stay])
def test_the_longest_wait_is_that_of_any_request_however_it_leaves_the_queue(make, agenda, end):
    engine, all_of = make(), [Told() for _ in range(3)]
    for told in all_of:
        engine.submit(told, 0.0)
    play(agenda, 0.5)
    engine.waits.checks[None] += 20
    assert engine.waits.longest(engine.batch.waiting) == 20  # it still waits
    end(engine, all_of[2])
    play(agenda, 50.0)
    engine.waits.checks[None] += 30
    assert engine.waits.longest(engine.batch.waiting) == 20


def test_the_transfer_of_a_kv_cache_is_no_time_in_the_queue(make, agenda):
    engine, told = make(), Told()
    told.transfer_seconds, told.source = 2.0, lambda: True
    engine.submit(told, 0.0)
    engine.waits.checks[None] += 20
    play(agenda, 50.0)
    assert told.seen[-1][0] == "last"
    assert engine.waits.longest(engine.batch.waiting) == 0


# What comes from elsewhere, the grid, and faults.


class Moved(Told):
    """Its KV cache takes two seconds to come."""

    def __init__(self, *, is_there: bool = True) -> None:
        super().__init__()
        self.left, self.transfer_seconds = 0, 2.0
        self.source = lambda: is_there


def test_a_kv_cache_on_its_way_waits_and_costs_no_prefill(make, agenda):
    engine, moved = make(), Moved()
    engine.submit(moved, 0.0)
    assert (engine.load, engine.running) == (1, 0)
    play(agenda, 1.0)
    assert engine.queued == 1
    play(agenda, 9.0)
    assert moved.seen == [("first", 3.0), ("last", 5.0)]
    assert engine.load == 0


def test_a_kv_cache_that_is_gone_is_an_error(make, agenda):
    engine, moved = make(), Moved(is_there=False)
    engine.submit(moved, 0.0)
    play(agenda, 9.0)
    assert moved.seen == [("500", 2.0)]
    assert engine.load == 0


def test_a_transfer_ends_with_its_request_or_its_engine(make, agenda):
    engine, left, lost = make(), Moved(), Moved()
    engine.submit(left, 0.0)
    engine.submit(lost, 0.0)
    engine.abort(left)
    assert engine.load == 1
    engine.kill(1.0)
    play(agenda, 9.0)
    assert left.seen == []
    assert lost.seen == [("lost", 1.0)]


GRID = EngineModel(
    max_num_seqs=2, step_seconds=1.0, jitter=0.0, is_on_grid=True, first_token_seconds=2.0
)


@pytest.mark.parametrize(("arrives", "first"), [(0.0, 2.0), (0.5, 3.0), (0.999, 3.0), (1.0, 3.0)])
def test_first_token_comes_at_the_next_grid_step(make, agenda, arrives, first):
    engine, told = make(GRID), Told()
    agenda.at(arrives, lambda now: engine.submit(told, now))
    play(agenda, 20.0)
    assert told.seen == [("first", first), ("last", first + 2.0)]


def test_on_a_grid_slots_are_given_on_arrival(make, agenda):
    engine, all_of = make(GRID), [Told() for _ in range(3)]
    for told in all_of:
        engine.submit(told, 0.0)
    assert (engine.gauges.running, engine.gauges.waiting) == (2, 1)
    play(agenda, 20.0)
    assert [told.seen[0][1] for told in all_of] == [2.0, 2.0, 5.0]


@pytest.mark.parametrize(
    ("faults", "answer"),
    [(FaultRates(0.0, 0, refused=1.0), NO_ANSWER), (FaultRates(0.0, 0, failed=1.0), 500)],
)
def test_an_engine_may_refuse_or_fail(make, faults, answer):
    engine = make()
    assert engine.is_fit
    engine.faults = faults
    assert not engine.is_fit
    assert engine.submit(Told(), 0.0) == answer
    assert engine.load == 0


@pytest.mark.parametrize(
    ("faults", "ill"),
    [
        (FaultRates(0.0, 0, failed=1.0, model="b"), {("b", False), ("b", True)}),
        (FaultRates(0.0, 0, failed=1.0, is_poison_only=True), {("a", True), ("b", True)}),
        (FaultRates(0.0, 0, failed=1.0, model="b", is_poison_only=True), {("b", True)}),
    ],
)
def test_requests_for_one_model_or_with_one_prompt_may_fail_alone(make, faults, ill):
    failed = set()
    for model, is_poison in product("ab", (False, True)):
        engine, told = make(), Told()
        engine.faults = faults
        told.model, told.is_poison = model, is_poison
        if engine.submit(told, 0.0) == 500:
            failed.add((model, is_poison))
    assert failed == ill


def test_an_engine_is_no_place_to_go_for_the_model_that_fails_there(make):
    engine = make()
    engine.faults = FaultRates(0.0, 0, failed=1.0, model="b")
    assert not engine.is_fit
    assert [engine.is_faulty_for(model) for model in ("a", "b", None)] == [False, True, False]
    engine.faults = FaultRates(0.0, 0, failed=1.0, is_poison_only=True)
    assert engine.is_fit  # the prompt is bad, not the engine
    assert not engine.is_faulty_for(None)


def test_an_engine_may_break_its_streams(make, agenda):
    engine, told = make(), Told()
    engine.faults = FaultRates(0.0, 0, broken=1.0)
    engine.submit(told, 0.0)
    play(agenda, 9.0)
    assert told.seen == [("first", 1.1), ("lost", 1.1)]
    assert (engine.running, engine.load) == (0, 0)


def test_an_engine_takes_requests_for_its_listed_models(agenda):
    engine = VirtualEngine(EngineSpec(MODEL, serves=("a", "b")), agenda, Random(1), 1)
    assert engine.serves("a")
    assert engine.serves(None)
    assert not engine.serves("c")
    assert VirtualEngine(MODEL, agenda, Random(1), 1).serves("c")
