"""Delays between attempts."""

from random import Random

from router.discovery.backoff import FIRST_SECONDS, LONGEST_SECONDS, Backoff


def test_delays_double_up_to_a_limit_and_start_again_after_a_success() -> None:
    backoff = Backoff(Random(1))
    ceilings = [min(FIRST_SECONDS * 2**n, LONGEST_SECONDS) for n in range(12)]
    for ceiling in ceilings:
        assert ceiling / 2 <= backoff.next() <= ceiling
    backoff.reset()
    assert backoff.next() <= FIRST_SECONDS


def test_routers_do_not_come_back_at_the_same_moment() -> None:
    delays = {Backoff(Random(seed)).next() for seed in range(100)}
    assert len(delays) == 100
    assert max(delays) - min(delays) > FIRST_SECONDS / 3
