"""Hypothesis without a clock, and with the same examples in every run; how many tests run at once.

`--hypothesis-profile=deep` looks for new examples.
"""

import os

import pytest
from hypothesis import HealthCheck, settings

MOST_WORKERS = 8
"""Each collects all tests first: more of them would only do that."""

settings.register_profile(
    "suite",
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "deep", parent=settings.get_profile("suite"), max_examples=3000, derandomize=False
)


def pytest_configure(config: pytest.Config) -> None:
    """Choose the profile unless the command line did."""
    if not config.getoption("--hypothesis-profile"):
        settings.load_profile("suite")


def pytest_xdist_auto_num_workers() -> int:
    """`-n auto`: one more than there are cores, for many tests wait for processes."""
    return min(len(os.sched_getaffinity(0)) + 1, MOST_WORKERS)
