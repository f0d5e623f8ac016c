"""Leases: counted at once, given back once."""

from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from router.core.fleet.ledger import Lease, Ledger
from router.core.values import Endpoint
from tests.core.fixtures import D0, D1, P0


def test_a_lease_counts_until_it_is_released() -> None:
    ledger = Ledger()
    lease = ledger.lease(D0, 100)
    assert (ledger.in_flight(D0), ledger.tokens(D0), ledger.total()) == (1, 100, 1)
    lease.release()
    assert (ledger.in_flight(D0), ledger.tokens(D0), ledger.total()) == (0, 0, 0)


def test_releasing_twice_changes_nothing() -> None:
    ledger = Ledger()
    lease, other = ledger.lease(D0, 1), ledger.lease(D0, 2)
    lease.release()
    lease.release()
    assert (ledger.in_flight(D0), ledger.tokens(D0)) == (1, 2)
    other.release()


def test_an_endpoint_never_leased_has_nothing_in_flight() -> None:
    assert (Ledger().in_flight(D0), Ledger().tokens(D0)) == (0, 0)


def test_an_address_in_two_roles_is_counted_apart() -> None:
    ledger = Ledger()
    prefill = Endpoint(D0.url, P0.role)
    ledger.lease(D0, 1)
    assert ledger.in_flight(prefill) == 0


def test_leaving_a_block_by_an_error_releases_the_lease() -> None:
    ledger = Ledger()
    with pytest.raises(ZeroDivisionError), ledger.lease(D0, 1):
        1 / 0  # noqa: B018 - any error would do
    assert ledger.total() == 0


def test_a_lease_has_its_counts() -> None:
    with Ledger().lease(D0, 7) as lease:
        assert (lease.endpoint, lease.tokens) == (D0, 7)


class Leases(RuleBasedStateMachine):
    """Leases taken and released in any order, some of them twice, against a count by hand."""

    held = Bundle("held")
    ended = Bundle("ended")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.open: list[Lease] = []

    @rule(target=held, endpoint=st.sampled_from([D0, D1, P0]), tokens=st.integers(0, 9))
    def take(self, endpoint: Endpoint, tokens: int) -> Lease:
        """Take a lease."""
        lease = self.ledger.lease(endpoint, tokens)
        self.open.append(lease)
        return lease

    @rule(target=ended, lease=consumes(held))
    def release(self, lease: Lease) -> Lease:
        """Release it."""
        lease.release()
        self.open.remove(lease)
        return lease

    @rule(lease=ended)
    def release_again(self, lease: Lease) -> None:
        """Release one that is over."""
        lease.release()

    @invariant()
    def counts_are_those_of_the_open_leases(self) -> None:
        """The ledger agrees with the list."""
        requests = Counter(lease.endpoint for lease in self.open)
        for endpoint in (D0, D1, P0):
            tokens = sum(lease.tokens for lease in self.open if lease.endpoint == endpoint)
            assert self.ledger.in_flight(endpoint) == requests[endpoint]
            assert self.ledger.tokens(endpoint) == tokens
        assert self.ledger.total() == len(self.open)


TestCountsFollowTheLeases = Leases.TestCase
