"""What a simulation is made of is checked when it is made."""

from dataclasses import replace
from random import Random

import pytest

from router.core.routing.engine_timeouts import EngineTimeouts
from router.net.limits import timers
from router.settings import Settings
from router.simulator.virtual.replica import SWEEP_SECONDS
from router.simulator.virtual.values import (
    PREFILL_TIMEOUTS,
    TIMEOUTS,
    EngineModel,
    EngineSpec,
    Lengths,
    RouterRestart,
    Scenario,
    Speed,
    Turn,
    Workload,
)
from tests.simulator.virtual.cluster import cluster


@pytest.mark.parametrize("wrong", ["engines", "streams", "requests", "replicas"])
def test_nothing_may_be_missing(wrong: str):
    sizes = {"engines": 1, "streams": 1, "requests": 1, "replicas": 1, wrong: 0}
    work = Workload(sizes["requests"], sizes["streams"], Lengths(1), Lengths(1))
    with pytest.raises(ValueError, match="at least 1"):
        Scenario("test", sizes["engines"], EngineModel(), work, sizes["replicas"])


def test_a_request_that_never_fits_is_refused():
    with pytest.raises(ValueError, match="does not fit in the KV cache"):
        cluster(model=EngineModel(kv_tokens=80), prompt=Lengths(31))
    with pytest.raises(ValueError, match="does not fit in the KV cache"):
        cluster(model=EngineModel(kv_tokens=80), prompt=Lengths(1), output=Lengths(1, 1.0, 80))


def test_a_poisoned_prompt_fits_in_the_kv_cache_and_its_blocks_have_a_size():
    work = Workload(1, 1, Lengths(1), Lengths(1), poison=Turn(90, 1), poison_share=0.5)
    with pytest.raises(ValueError, match="does not fit in the KV cache"):
        Scenario("test", 1, EngineModel(kv_tokens=90), work)
    with pytest.raises(ValueError, match="prefix caches"):
        Scenario("test", 1, EngineModel(), replace(work, poison=Turn(90, 1, (1, 2))))


def test_a_change_of_an_engine_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="not there"):
        cluster(Speed(0.0, 8, 2.0))


def test_lengths_are_all_alike_or_lognormal():
    rng = Random(1)
    assert {Lengths(50).draw(rng) for _ in range(10)} == {50}
    assert Lengths(50).mean == 50
    tail = Lengths(50, 1.0, 400)
    drawn = sorted(tail.draw(rng) for _ in range(2001))
    assert drawn[1000] == pytest.approx(50, rel=0.1)
    assert drawn[0] >= 1
    assert drawn[-1] == 400
    assert tail.mean == pytest.approx(82.4, abs=0.1)


def test_patience_is_that_of_the_settings_and_of_the_shell():
    given = {name: Settings.model_fields[name].default for name in Settings.model_fields}
    assert EngineTimeouts(given["prefill_timeout"]) == PREFILL_TIMEOUTS
    assert EngineTimeouts(given["first_byte_timeout"], given["stream_idle_timeout"]) == TIMEOUTS
    assert timers.SWEEP_SECONDS == SWEEP_SECONDS


def test_pools_have_every_engine_and_the_given_models():
    model = EngineModel()
    work = Workload(1, 1, Lengths(1), Lengths(1), models=("a",))
    with pytest.raises(ValueError, match="a spec for each engine"):
        Scenario("test", 2, model, work, specs=(EngineSpec(model),))
    with pytest.raises(ValueError, match="no engine serves"):
        Scenario("test", 1, model, work, specs=(EngineSpec(model, serves=("b",)),))
    with pytest.raises(ValueError, match="replica"):
        cluster(RouterRestart(0.0, 1))
