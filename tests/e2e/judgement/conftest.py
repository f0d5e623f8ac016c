"""The stage on which the scenarios of this folder are played.

They are collected only with `-m judgement`, and run by themselves: they are loads in real time, and
on a busy machine their engines really are slow for a while (`lateness.py`). The alerts are not
played on the stage: they wait for states, on a busy machine too (`make alerts`).
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.judgement.stage import Stage

FOLDER = Path(__file__).parent

TIMEOUT_S = 900
"""For one test: all attempts at a scenario that takes 80 s on a machine with ten times too much to
do, and the wait for its turn."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore this folder without its marker; None leaves it to other hooks."""
    return None if "judgement" in config.getoption("markexpr") else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is in here."""
    for item in items:
        if item.path.is_relative_to(FOLDER):
            item.add_marker(pytest.mark.judgement)
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    """Plays the scenarios that were selected."""
    items = request.session.items
    tests = [each for each in items if isinstance(each, pytest.Function)]
    with Stage(each for each in tests if "stage" in each.fixturenames) as stage:
        yield stage
