"""A router with an endpoint picker."""

from collections.abc import AsyncIterator

import pytest

from tests.net.harness import Harness
from tests.web.epp.envoy import Picker, picking


@pytest.fixture
async def picker(harness: Harness) -> AsyncIterator[Picker]:
    """In front of two engines."""
    async with picking(harness, max_body_bytes=200_000) as picker:
        yield picker
