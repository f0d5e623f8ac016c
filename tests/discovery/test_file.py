"""The file that names the engines, while it changes."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from router.core.membership.entry import Target
from router.core.values import Endpoint, Role
from router.discovery.file import FileSource
from tests.net.harness import eventually

D0, D1 = (Target(Endpoint(f"http://d{number}", Role.DECODE)) for number in range(2))


def write(path: Path, *targets: Target) -> None:
    """Name these engines, at once: a reader never sees a half."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps({"decode": [target.endpoint.url for target in targets]}))
    fresh.replace(path)


@asynccontextmanager
async def watching(path: Path) -> AsyncIterator[list[tuple[Target, ...]]]:
    """A source's reports, in order."""
    said: list[tuple[Target, ...]] = []
    task = asyncio.ensure_future(FileSource(path, seconds=0.005).watch(said.append))
    yield said
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_each_change_is_reported_once_and_completely(tmp_path: Path) -> None:
    path = tmp_path / "engines.json"
    write(path, D0)
    async with watching(path) as said:
        await eventually(lambda: said == [(D0,)], lambda: said)
        write(path, D0, D1)
        await eventually(lambda: said == [(D0,), (D0, D1)], lambda: said)
        write(path)
        await eventually(lambda: said == [(D0,), (D0, D1), ()], lambda: said)


async def test_a_link_that_is_exchanged_is_a_change(tmp_path: Path) -> None:
    """As Kubernetes updates a ConfigMap."""
    for number, target in enumerate((D0, D1)):
        (tmp_path / str(number)).mkdir()
        write(tmp_path / str(number) / "engines.json", target)
    data = tmp_path / "data"
    data.symlink_to("0")
    async with watching(data / "engines.json") as said:
        await eventually(lambda: said == [(D0,)], lambda: said)
        fresh = tmp_path / "fresh"
        fresh.symlink_to("1")
        fresh.replace(data)
        await eventually(lambda: said == [(D0,), (D1,)], lambda: said)


async def test_a_mistake_keeps_the_engines_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "engines.json"
    write(path, D0)
    async with watching(path) as said:
        await eventually(lambda: said == [(D0,)], lambda: said)
        with caplog.at_level(logging.INFO):
            path.write_text('{"decode": ["d1"]}')
            await eventually(lambda: caplog.messages)
            path.write_text(' {"decode": ["d1"]}')  # the same mistake
            write(path, D1)
            await eventually(lambda: said == [(D0,), (D1,)], lambda: said)
    assert caplog.messages == [
        f"file {path}: decode[0]: 'd1' must start with http:// or https://; keeping the "
        "previous engines. Fix the file.",
        f"file {path}: valid again; engine list updated",
    ]


async def test_a_missing_file_is_logged_and_read_when_it_returns(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "engines.json"
    with caplog.at_level(logging.ERROR):
        async with watching(path) as said:
            await eventually(lambda: caplog.messages)
            assert said == []
            write(path, D0)
            await eventually(lambda: said == [(D0,)], lambda: said)
    assert caplog.messages == [
        f"file {path}: cannot be read: No such file or directory; keeping the previous "
        "engines. Fix the file."
    ]


async def test_only_a_file_that_can_be_used_is_an_answer(tmp_path: Path) -> None:
    path = tmp_path / "engines.json"
    path.write_text("{")
    answers: list[str] = []
    source = FileSource(path, 0.005, answers.append)
    said: list[tuple[Target, ...]] = []
    task = asyncio.ensure_future(source.watch(said.append))
    await eventually(lambda: source._complaint != "")
    assert answers == []
    write(path, D0)
    await eventually(lambda: len(answers) > 1)
    assert {*answers} == {*source.servers} == {f"file {path}"}
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
