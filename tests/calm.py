"""Time that passes only while there is no work, so a slow machine does not matter.

For tests in one process, on asyncio's own loop: `calm` is a fixture for their conftest.
"""

import asyncio
import time
from selectors import BaseSelector, SelectorKey
from typing import Any

import pytest

__all__ = ["calm"]

GRACE_S = 0.005
"""Real time for what is on its way through the kernel, before a timer is awaited."""
LATE_S = 1e-6
"""Timers ring a little late, as everywhere."""

Ready = list[tuple[SelectorKey, int]]


class Calm:
    """The clock of a loop: it stops while there is work, and jumps to the next timer."""

    def __init__(self, selector: BaseSelector) -> None:
        self._now = time.monotonic()
        self._wait = selector.select

    def now(self) -> float:
        """Instead of time.monotonic."""
        return self._now

    def select(self, timeout: float | None = None) -> Ready:
        """Instead of the selector's: waits for as long as it takes, or not at all."""
        if timeout is None or timeout <= 0:
            return self._wait(timeout)
        found = self._wait(GRACE_S)
        if not found:
            self._now += timeout + LATE_S
        return found


@pytest.fixture
async def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this test only awaited time passes."""
    loop: Any = asyncio.get_running_loop()
    clock = Calm(loop._selector)
    monkeypatch.setattr(loop._selector, "select", clock.select)
    monkeypatch.setattr(time, "monotonic", clock.now)
