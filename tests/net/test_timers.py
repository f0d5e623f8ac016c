"""The event loop's lag is measured as long as the router runs."""

import asyncio

import pytest

from router.net.limits.timers import LoopLagMonitor


async def test_a_measurement_that_fails_is_not_the_last() -> None:
    loop, failed = asyncio.get_running_loop(), asyncio.Event()
    twice = asyncio.Event()
    loop.set_exception_handler(lambda *_: twice.set() if failed.is_set() else failed.set())

    def fail(_: float) -> None:
        raise ZeroDivisionError

    monitor = LoopLagMonitor(fail)
    monitor.start()
    async with asyncio.timeout(60):
        await twice.wait()
    monitor.close()


async def test_lag_is_never_negative(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.net.limits.timers.INTERVAL_SECONDS", 0.0)
    seen: asyncio.Queue[float] = asyncio.Queue()
    monitor = LoopLagMonitor(seen.put_nowait)
    monitor.start()
    assert all([await seen.get() >= 0 for _ in range(3)])
    monitor.close()
