"""Hypothesis for tests of pure code: no clock, and the same examples in every run.

`--hypothesis-profile=deep` looks for new ones.
"""

import pytest
from hypothesis import settings

settings.register_profile(
    "core",
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    report_multiple_bugs=False,
)
settings.register_profile(
    "deep", parent=settings.get_profile("core"), max_examples=3000, derandomize=False
)


def pytest_configure(config: pytest.Config) -> None:
    """Choose the profile unless the command line did."""
    if not config.getoption("--hypothesis-profile"):
        settings.load_profile("core")
