"""One sampler serves all viewers, while there are any; a slow one is dropped."""

import asyncio
import logging
from contextlib import ExitStack

import pytest

from router.core.errors import TooManyViewers
from router.web.dashboard.page import MAX_UNSENT, MAX_VIEWERS, Sampler, Viewer
from tests.net.harness import eventually


class Clock:
    """Sleeps until the test lets a second pass."""

    def __init__(self) -> None:
        self.sleepers: list[asyncio.Future[None]] = []

    async def sleep(self, _: float) -> None:
        self.sleepers.append(asyncio.get_running_loop().create_future())
        await self.sleepers[-1]

    async def second(self) -> None:
        """Let a second pass for all sleepers."""
        await eventually(lambda: self.sleepers)
        self.sleepers.pop().set_result(None)


class Source:
    """Counts."""

    def __init__(self) -> None:
        self.samples = 0
        self.error: Exception | None = None

    async def sample(self) -> bytes:
        if self.error is not None:
            raise self.error
        self.samples += 1
        return b"%d" % self.samples

    def history(self) -> bytes:
        return b"[%d]" % self.samples


class Stage:
    """A sampler with a clock and sources that a test controls."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.sources: list[Source] = []
        self.is_over = False
        self.sampler = Sampler(self._begin, lambda: self.is_over, self.clock.sleep)

    def _begin(self) -> Source:
        self.sources.append(Source())
        return self.sources[-1]


@pytest.fixture
def stage() -> Stage:
    return Stage()


async def data_of(viewer: Viewer) -> str:
    """The data of the next event."""
    async with asyncio.timeout(60):
        text = (await anext(viewer)).decode()
    assert text.endswith("\n\n")
    return text.rpartition("data: ")[2].strip()


async def is_dropped(viewer: Viewer) -> bool:
    """Whether its events have ended."""
    async with asyncio.timeout(60):
        return [event async for event in viewer] == []


async def test_no_sample_without_a_viewer(stage: Stage) -> None:
    assert not stage.sampler.is_running
    assert stage.sources == []
    with stage.sampler.watch() as viewer:
        assert await data_of(viewer) == "[0]"
        assert await data_of(viewer) == "1"
    assert not stage.sampler.is_running
    await eventually(lambda: all(sleeper.cancelled() for sleeper in stage.clock.sleepers))
    assert stage.sources[0].samples == 1


async def test_a_sample_a_second_goes_to_all_viewers(stage: Stage) -> None:
    with stage.sampler.watch() as one, stage.sampler.watch() as other:
        for viewer in (one, other):
            assert await data_of(viewer) == "[0]"
            assert await data_of(viewer) == "1"
        await stage.clock.second()
        assert await data_of(one) == await data_of(other) == "2"
    assert len(stage.sources) == 1


async def test_a_later_viewer_gets_history_and_last_sample_at_once(stage: Stage) -> None:
    with stage.sampler.watch() as first:
        await data_of(first)
        await data_of(first)
        with stage.sampler.watch() as second:
            assert await data_of(second) == "[1]"
            assert await data_of(second) == "1"
        assert stage.sampler.is_running


async def test_each_run_has_a_source_of_its_own(stage: Stage) -> None:
    for _ in range(2):
        with stage.sampler.watch() as viewer:
            assert await data_of(viewer) == "[0]"
            assert await data_of(viewer) == "1"
    assert len(stage.sources) == 2


async def test_a_viewer_that_does_not_read_is_dropped_and_the_others_are_not(stage: Stage) -> None:
    with stage.sampler.watch() as slow, stage.sampler.watch() as quick:
        await data_of(quick)
        for _ in range(MAX_UNSENT):
            await data_of(quick)
            await stage.clock.second()
        await data_of(quick)
        assert await is_dropped(slow)
        assert stage.sampler.is_running


async def test_samples_end_when_the_last_viewer_is_dropped(stage: Stage) -> None:
    with stage.sampler.watch():
        for _ in range(MAX_UNSENT):
            await stage.clock.second()
        await eventually(lambda: not stage.sampler.is_running)


async def test_viewers_are_bounded_by_connections(stage: Stage) -> None:
    with ExitStack() as stack:
        for _ in range(MAX_VIEWERS):
            stack.enter_context(stage.sampler.watch())
        with pytest.raises(TooManyViewers), stage.sampler.watch():
            pass
        for _ in range(MAX_UNSENT):  # all are dropped; their connections are still there
            await stage.clock.second()
        await eventually(lambda: not stage.sampler.is_running)
        with pytest.raises(TooManyViewers), stage.sampler.watch():
            pass
    with stage.sampler.watch() as viewer:
        assert await data_of(viewer) == "[0]"


async def test_viewers_do_not_hold_up_the_routers_end(stage: Stage) -> None:
    with stage.sampler.watch() as viewer:
        await data_of(viewer)
        await data_of(viewer)
        stage.is_over = True
        await stage.clock.second()
        assert await is_dropped(viewer)
        await eventually(lambda: not stage.sampler.is_running)


async def test_a_failure_is_logged_and_the_next_viewer_begins_anew(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR), stage.sampler.watch() as viewer:
        await data_of(viewer)
        await data_of(viewer)
        stage.sources[0].error = ZeroDivisionError("wrong")
        await stage.clock.second()
        assert await is_dropped(viewer)
    assert "dashboard sampling failed; disconnecting viewers" in caplog.text
    with stage.sampler.watch() as viewer:
        assert await data_of(viewer) == "[0]"
        assert await data_of(viewer) == "1"
