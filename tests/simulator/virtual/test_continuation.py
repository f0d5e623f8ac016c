"""Users that notice a failed engine, with --stream-continuation and without."""

from dataclasses import replace

import pytest

from router.simulator.virtual.results import Result
from router.simulator.virtual.scenarios.catalogue import scenario
from router.simulator.virtual.scenarios.pools import Size
from router.simulator.virtual.values import FaultRates, Freeze, Lengths, Restart, Speed, Unread
from tests.simulator.virtual.cluster import cluster, run

DIES = Restart(2.0, 0, 2.0)


def run_on(*changes, requests: int = 600, **options) -> Result:
    """With continuation."""
    return run(replace(cluster(*changes, requests=requests, **options), continues=True))


def both(*changes, requests: int = 1400, **options) -> tuple[Result, Result]:
    """Without and with continuation."""
    off = run(cluster(*changes, requests=requests, **options))
    return off, run_on(*changes, requests=requests, **options)


def test_no_client_notices_the_death_of_an_engine():
    off, on = both(DIES, requests=600)
    assert (off.continued, on.failed) == (0, 0)
    assert off.failed == on.continued > 0
    assert on.longest_pause < 1.0
    assert on.leases_left == 0


def test_streams_leave_an_engine_that_freezes():
    off, on = both(Freeze(2.0, 0, 10.0))
    assert (off.failed, on.failed) == (0, 0)
    assert on.e2e[-1] < 5.0 < 10.0 < off.e2e[-1]
    assert 2.0 < on.longest_pause < 4.0


def test_a_stream_goes_on_more_than_once_but_not_through_the_whole_pool():
    assert run_on(Restart(2.0, 0, 2.0), Restart(2.2, 1, 2.0)).failed == 0
    all_break = (FaultRates(2.0, place, broken=1.0) for place in range(8))
    assert run_on(*all_break, requests=400).failed > 100


def test_nothing_goes_on_when_no_other_engine_is_up():
    off, on = both(DIES, engines=1, streams=8, requests=100)
    assert off.failed == on.failed > 0


def test_clients_that_do_not_read_get_the_rest_of_the_continued_answer():
    assert run_on(Unread(1.5, 0, 2.0), DIES, output=Lengths(200)).failed == 0


@pytest.mark.parametrize("name", ["disaggregated", "agents"])
def test_prefills_and_prefix_caches_serve_continued_streams_too(name):
    base = scenario(name, Size(requests=200))
    changes = tuple(Restart(3.0 + 4.0 * n, n % 3, 2.0) for n in range(9))
    off, on = (run(replace(base, changes=changes, continues=c)) for c in (False, True))
    assert off.failed > on.failed == 0
    assert on.continued > 0


def test_the_streams_of_a_very_slow_engine_end_with_the_others():
    off, on = both(Speed(2.0, 0, 8.0))
    assert (off.failed, on.failed) == (0, 0)
    assert on.e2e[-1] < 6.0 < 8.0 < off.e2e[-1]
    assert on.longest_pause < 1.0
