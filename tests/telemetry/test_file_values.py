"""The files in which worker processes count: a full file system costs counts, not the worker."""

import contextlib
import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.samples import Exemplar

from router.telemetry.file_values import STEP_BYTES, FileValue, ValueFiles


class Disk:
    """A file system with room for so many bytes; `granted` are those that it gave away."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room, self.granted = float("inf"), 0
        self._allocate = os.posix_fallocate
        monkeypatch.setattr(os, "posix_fallocate", self._ask)

    def _ask(self, descriptor: int, offset: int, length: int) -> None:
        if self.granted + length > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.granted += length
        self._allocate(descriptor, offset, length)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture
def files(disk: Disk, tmp_path: Path) -> Iterator[ValueFiles]:
    found = ValueFiles(tmp_path, 0)
    yield found
    found.close()


def values(files: ValueFiles, count: int) -> list[FileValue]:
    """So many numbers of some hundred bytes each, all counted up."""
    found = [
        files("counter", "name", "name_total", ["endpoint"], [str(number)], "x" * 100)
        for number in range(count)
    ]
    for each in found:
        each.inc(1.0)
    return found


def read(folder: Path) -> list[float]:
    """What another process finds."""
    path = str(folder / "counter_0.db")
    found = MmapedDict.read_all_values_from_file(path)  # type: ignore[no-untyped-call]
    return [value for _, value, *_ in found]


def test_all_that_is_written_has_room_in_the_file_system(
    disk: Disk, files: ValueFiles, tmp_path: Path
) -> None:
    values(files, 1000)
    file = files._files["counter"]
    assert disk.granted >= file._used > 2 * STEP_BYTES
    assert disk.granted <= (tmp_path / "counter_0.db").stat().st_size == file._capacity
    assert read(tmp_path) == [1.0] * 1000


def test_counts_without_room_are_dropped_with_one_line_and_return_with_room(
    disk: Disk, files: ValueFiles, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk.room = STEP_BYTES
    found = values(files, 1000)
    assert 0 < len(read(tmp_path)) < 1000
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert "counts are missing" in record.message
    assert "No space left on device" in record.message
    disk.room = float("inf")
    for each in found:
        each.inc(1.0)
    assert read(tmp_path) == [2.0] * 1000


def test_without_room_for_a_file_all_is_counted_and_comes_when_there_is_some(
    disk: Disk, files: ValueFiles, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk.room = 0
    found = values(files, 3)
    files.compact(lambda _: True)
    assert list(tmp_path.iterdir()) == []
    assert [each.get() for each in found] == [1.0] * 3
    [record] = caplog.records
    assert "counts are missing" in record.message
    disk.room = float("inf")
    for each in found:
        each.inc(1.0)
    assert read(tmp_path) == [2.0] * 3


def test_a_successor_continues_a_file_and_allocates_only_new_room(
    disk: Disk, files: ValueFiles, tmp_path: Path
) -> None:
    values(files, 1000)
    granted = disk.granted
    successor = ValueFiles(tmp_path, 0)
    with contextlib.closing(successor):
        values(successor, 1000)
        assert disk.granted == granted
        values(successor, 1500)
        assert disk.granted == successor._files["counter"]._room
    assert read(tmp_path) == [3.0] * 1000 + [1.0] * 500


def test_a_file_that_has_no_room_for_its_copy_stays_as_it_is(
    disk: Disk, files: ValueFiles, tmp_path: Path
) -> None:
    found = values(files, 1000)
    for more in (0, STEP_BYTES):
        disk.room = disk.granted + more
        files.compact(lambda _: True)
        assert [path.name for path in tmp_path.iterdir()] == ["counter_0.db"]
    found[0].inc(1.0)
    assert read(tmp_path) == [2.0] + [1.0] * 999
    disk.room = float("inf")
    files.compact(lambda key: '"endpoint": "0"' in key)
    assert read(tmp_path) == [2.0]


def test_a_compaction_drops_exemplars_of_removed_series(files: ValueFiles) -> None:
    gone, kept = values(files, 2)
    exemplar = Exemplar({"trace_id": "a"}, 1.0)
    for each in (gone, kept):
        each.set_exemplar(exemplar)
    files.compact(lambda key: '"1"' in key)
    assert (gone.get_exemplar(), kept.get_exemplar()) == (None, exemplar)
