"""Simulated engines and a router for the documents' commands."""

import os
from collections.abc import Iterator

import pytest

from router.settings import ENV_PREFIX
from tests.docs.running import Pools, pools


@pytest.fixture(scope="session")
def running_pools() -> Iterator[Pools]:
    """One prefill and two decode engines behind a router, for all tests of this process."""
    with pools() as running:
        yield running


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of whoever runs the tests configures nothing."""
    for name in os.environ:
        if name.upper().startswith(ENV_PREFIX):
            monkeypatch.delenv(name)
