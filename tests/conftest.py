"""Hypothesis without a clock, and with the same examples in every run.

`--hypothesis-profile=deep` looks for new ones.
"""

import pytest
from hypothesis import HealthCheck, settings

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
