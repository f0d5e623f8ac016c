"""Sessions: requests that come at their time, and those that wait for the answer before them."""

from dataclasses import replace

import pytest

from router.simulator.virtual.values import EngineModel, FaultRates, Scenario, Session, Turn
from tests.simulator.virtual.cluster import cluster, run

MODEL = EngineModel(block_size=16, kv_tokens=16_000, jitter=0.0)


def serving(*sessions: Session, engines: int = 1, model: EngineModel = MODEL) -> Scenario:
    """A cluster for these sessions and nothing else."""
    made = cluster(engines=engines, model=model)
    requests = sum(len(session.turns) for session in sessions)
    work = replace(made.workload, streams=0, requests=requests)
    return replace(made, workload=work, sessions=sessions)


def test_a_session_begins_at_its_time_and_goes_on_after_each_answer():
    turns = (Turn(320, 50), Turn(400, 50, pause=2.0), Turn(480, 50, pause=3.0))
    result = run(serving(Session(7.0, turns)))
    answers = 3 * 50 * MODEL.step_seconds
    assert result.requests == 3
    assert result.seconds == pytest.approx(7.0 + 2.0 + 3.0 + answers, abs=0.1)


def test_sessions_do_not_wait_for_each_other():
    result = run(serving(*(Session(float(at), (Turn(32, 500),)) for at in range(4))))
    assert result.seconds == pytest.approx(3.0 + 500 * MODEL.step_seconds, abs=0.1)


def test_a_turn_finds_the_blocks_of_earlier_turns():
    first = tuple(range(23))  # 320 + 50 tokens
    turns = (Turn(320, 50, first), Turn(400, 16, (*first, 90, 91)))
    result = run(serving(Session(0.0, turns)))
    assert [engine.prefix_hits for engine in result.engines] == [23 * 16]
    assert result.prefix_hit_rate == pytest.approx(23 * 16 / 720)


def test_a_session_goes_on_when_one_of_its_requests_has_failed():
    made = serving(Session(1.0, (Turn(32, 5), Turn(64, 5))))
    result = run(replace(made, changes=(FaultRates(0.0, 0, failed=1.0),)))
    assert (result.requests, result.failed) == (2, 2)


def test_a_request_of_a_session_must_fit_in_the_kv_cache():
    with pytest.raises(ValueError, match="a request of 16001 tokens does not fit"):
        serving(Session(0.0, (Turn(16_000, 1),)))
    with pytest.raises(ValueError, match="does not fit"):  # three whole blocks
        serving(Session(0.0, (Turn(62, 1),)), model=replace(MODEL, kv_tokens=63))


def test_engines_that_serve_sessions_have_blocks_of_one_size():
    made = serving(Session(0.0, (Turn(100, 1),)), engines=2)
    specs = (made.pool[0], replace(made.pool[1], model=replace(MODEL, block_size=32)))
    with pytest.raises(ValueError, match="of one size"):
        replace(made, specs=specs)
