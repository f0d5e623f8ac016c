"""Simulated engines and a router for the documents' commands."""

from collections.abc import Iterator

import pytest

from tests.docs.running import Pools, pools


@pytest.fixture(scope="session")
def running_pools() -> Iterator[Pools]:
    """One prefill and two decode engines behind a router, for all tests of this process."""
    with pools() as running:
        yield running


@pytest.fixture(autouse=True)
def _no_settings(no_settings: None) -> None:
    """In all tests of this folder."""
