"""The prefix cache of a modelled engine: what it finds, what it keeps and what goes first."""

from random import Random

import pytest

from router.core.speed.speed_estimator import SpeedEstimator
from router.simulator.virtual.agenda import Agenda
from router.simulator.virtual.engine import VirtualEngine
from router.simulator.virtual.kv_cache import make_kv_cache
from router.simulator.virtual.values import EngineModel
from tests.simulator.virtual.test_engine import Told, play

MODEL = EngineModel(
    max_num_seqs=8,
    step_seconds=1.0,
    prefill_tokens_per_second=100.0,
    max_num_batched_tokens=50,
    kv_tokens=100,
    block_size=10,
    jitter=0.0,
)


def told(*contents: int, prompt: int, output: int = 1) -> Told:
    """A request with these blocks."""
    made = Told(prompt, output)
    made.contents = contents
    return made


@pytest.fixture
def agenda():
    return Agenda()


@pytest.fixture
def engine(agenda):
    made = VirtualEngine(MODEL, agenda, Random(1), replicas=1)
    made.speeds = [SpeedEstimator()]
    return made


@pytest.fixture
def serve(engine, agenda):
    """Serves requests one after the other; returns what each found in the cache."""

    def serve(*requests: Told) -> list[int]:
        for request in requests:
            engine.submit(request, agenda.now)
            play(agenda, agenda.now + 50.0)
            assert request.seen[-1][0] == "last"
        return [request.cached for request in requests]

    return serve


def test_a_prompt_that_begins_as_another_is_computed_from_there_on(engine, serve, agenda):
    first, second = told(1, 2, 3, prompt=35), told(1, 2, 4, 5, prompt=45)
    assert serve(first, second) == [0, 20]
    assert first.seen[0][1] == pytest.approx(1.35)
    assert second.seen[0][1] - 50.0 == pytest.approx(1.25)
    assert (engine.kv.queries, engine.kv.hits) == (80, 20)


def test_the_last_token_is_always_computed(serve):
    assert serve(told(1, 2, prompt=20), told(1, 2, prompt=20), told(1, 2, prompt=21)) == [0, 10, 20]


def test_an_answer_is_cached_without_its_last_token(serve):
    asked = told(1, 2, 3, prompt=15, output=15)
    assert serve(asked, told(1, 2, 3, 4, prompt=41)) == [0, 20]
    asked = told(5, 6, 7, prompt=15, output=16)
    assert serve(asked, told(5, 6, 7, 8, prompt=41)) == [0, 30]


def test_a_prompt_finds_the_blocks_computed_before_it_in_the_same_step(engine, agenda):
    siblings = [told(1, 2, prompt=22) for _ in range(3)]
    for sibling in siblings:
        engine.submit(sibling, 0.0)
    play(agenda, 5.0)
    assert [sibling.cached for sibling in siblings] == [0, 20, 20]
    assert {sibling.seen[0] for sibling in siblings} == {("first", 1.26)}


def test_the_longest_unused_goes_first_and_a_tail_before_its_head(engine, serve):
    serve(told(1, 2, 3, prompt=39), told(4, 5, 6, prompt=39))
    serve(told(7, 8, 9, prompt=39), told(10, 11, prompt=29))  # ten blocks: two had to be evicted
    assert engine.kv.cached(99, (1, 2, 3)) == 10
    assert engine.kv.cached(99, (4, 5, 6)) == 30


def test_blocks_that_no_prompt_can_find_are_used_again_first(engine, serve):
    """The last one of each request, of which three have been full in ten blocks."""
    serve(*(told(number, prompt=15) for number in range(9)))
    assert [engine.kv.cached(99, (number,)) for number in range(9)] == [10] * 9


def test_the_last_token_of_an_answer_needs_no_block(engine, serve):
    serve(*(told(number, prompt=10) for number in range(9)))
    serve(told(9, prompt=10, output=1))
    assert [engine.kv.cached(99, (number,)) for number in range(10)] == [10] * 10


def test_an_answer_evicts_no_block_before_its_tokens(engine, serve, agenda):
    serve(told(1, 2, 3, prompt=39))
    holder = told(4, prompt=5, output=80)
    engine.submit(holder, agenda.now)
    play(agenda, agenda.now + 9.0)
    assert engine.gauges.kv_usage == pytest.approx(0.9)  # reserved, so that it never waits
    assert engine.kv.cached(99, (1, 2, 3)) == 30
    play(agenda, agenda.now + 90.0)
    assert engine.kv.usage == 0.0
    assert engine.kv.cached(99, (1, 2, 3)) == 10


def test_a_block_that_is_computed_again_stays_when_the_first_is_evicted(engine, serve):
    serve(told(1, 2, prompt=20), *(told(number, prompt=10) for number in range(3, 9)))
    assert serve(told(1, 2, prompt=20)) == [10]  # the last token, and so its block
    serve(*(told(number, prompt=10) for number in range(9, 11)))  # evicts the first block 2
    assert engine.kv.cached(99, (1, 2)) == 20


def test_blocks_that_sequences_hold_are_no_room_for_others(engine, agenda):
    holder, waiter = told(1, 2, prompt=25, output=40), told(1, 2, 3, 4, prompt=45, output=10)
    engine.submit(holder, 0.0)
    engine.submit(waiter, 0.0)
    play(agenda, 3.0)
    assert (engine.running, engine.queued) == (1, 1)  # 7 of 10 are held, 4 more are needed
    assert engine.gauges.kv_usage == pytest.approx(0.7)
    play(agenda, 90.0)
    assert (waiter.cached, engine.kv.usage) == (20, 0.0)


def test_computed_blocks_of_an_aborted_request_stay(engine, agenda, serve):
    long = told(1, 2, 3, 4, 5, 6, 7, 8, prompt=90)
    engine.submit(long, 0.0)
    play(agenda, 1.6)  # the second step continues: its blocks are named at its beginning
    engine.abort(long)
    play(agenda, 20.0)
    assert engine.kv.usage == 0.0
    assert serve(told(1, 2, 3, 4, 5, 6, 7, 9, prompt=90)) == [70]


def test_a_restart_loses_the_cache_and_keeps_the_counts(engine, agenda, serve):
    serve(told(1, 2, prompt=25))
    engine.kill(agenda.now)
    engine.start()
    assert serve(told(1, 2, prompt=25)) == [0]
    assert engine.kv.queries == 50


def test_a_cache_that_came_from_elsewhere_serves_others(engine, agenda, serve):
    moved = told(1, 2, prompt=25)
    moved.transfer_seconds, moved.left, moved.source = 0.5, 0, lambda: True
    engine.submit(moved, 0.0)
    play(agenda, 20.0)
    assert moved.seen[0] == ("first", 1.5)
    assert serve(told(1, 2, 3, prompt=35)) == [20]


def test_requests_that_name_no_blocks_share_nothing(serve):
    assert serve(told(prompt=30), told(prompt=30)) == [0, 0]


def test_without_blocks_nothing_is_found():
    kv = make_kv_cache(EngineModel())
    request = told(1, 2, prompt=40)
    assert kv.place(request)
    kv.fill(request, 40)
    assert (kv.cached(40, (1, 2)), kv.queries, kv.hits) == (0, 0, 0)
