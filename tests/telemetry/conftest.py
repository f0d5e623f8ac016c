"""What tests of metrics share."""

import pytest

from tests.telemetry.metrics_bench import Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()
