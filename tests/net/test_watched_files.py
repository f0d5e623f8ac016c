"""Files that change are seen once for each change, however they are replaced."""

import os
from pathlib import Path

import pytest

from router.net.watched_files import WatchedFiles


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "file"
    made.write_text("one")
    return made


def test_nothing_has_changed_until_something_does(path: Path) -> None:
    files = WatchedFiles(path)
    assert not files.have_changed()
    path.write_text("three")
    assert files.have_changed()
    assert not files.have_changed()


def test_another_file_of_the_same_size_and_time_is_another_one(path: Path) -> None:
    files = WatchedFiles(path)
    other = path.with_name("other")
    other.write_text("two")
    times = path.stat()
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    other.replace(path)
    assert files.have_changed()


def test_a_link_that_is_exchanged_counts_as_kubernetes_does_it(path: Path, tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
        (folder / "file").write_text("same")
    data = tmp_path / "..data"
    data.symlink_to(folders[0])
    files = WatchedFiles(data / "file")
    (tmp_path / "new").symlink_to(folders[1])
    (tmp_path / "new").replace(data)
    assert files.have_changed()


def test_a_file_that_goes_and_comes_back_changes_twice(path: Path) -> None:
    files = WatchedFiles(path, path.with_name("never"))
    path.unlink()
    assert files.have_changed()
    assert not files.have_changed()
    path.write_text("one")
    assert files.have_changed()
