"""Claim: a real engine that is slowed to a quarter is found, spared and taken back."""

import pytest

from tests.engines import lab, slowed
from tests.engines.layout import layout
from tests.engines.slowed import plain_engines

FAIR = 1 / 3


@pytest.mark.timeout(600)
async def test_a_slowed_engine_is_found_spared_and_taken_back() -> None:
    where = layout()
    engines = plain_engines(where)
    started = lab.start(where, engines)
    try:
        result = await slowed.run("shortest_expected_delay", engines, where)
    finally:
        for engine in started:
            engine.stop()
    healthy, slow, recovered = result.phases
    assert result.failed == 0
    assert healthy.share(result.slowed) > FAIR / 2
    assert "slow" in result.exclusions(slow)
    # From 4 s on: the requests that it had must have ended, and its speed be known.
    assert slow.share(result.slowed, since=4.0) < FAIR / 4
    assert result.exclusions(recovered)[-1] is None
    assert recovered.share(result.slowed, since=10.0) > FAIR / 2
