"""The stage on which the scenarios of this folder are played."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.judgement.stage import Stage

FOLDER = Path(__file__).parent


@pytest.fixture(scope="session")
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    """Plays the scenarios that were selected."""
    items = request.session.items
    tests = [each for each in items if isinstance(each, pytest.Function)]
    with Stage(each for each in tests if "stage" in each.fixturenames) as stage:
        yield stage
