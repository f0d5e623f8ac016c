"""Files that change are seen once for each change, however they are replaced."""

import os
import ssl
from pathlib import Path

import pytest

from router.net.watched_files import TLSFiles, WatchedFiles


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


class Files:
    """A watched certificate; `why` it cannot be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.path.write_text("one")
        self.why: str | None = None
        self.made = 0
        self.tls = TLSFiles("engines", self._make, path)

    def _make(self) -> ssl.SSLContext:
        self.made += 1
        if self.why is not None:
            raise ValueError(self.why)
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "cert")


def test_one_that_could_not_be_read_is_tried_until_it_can(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    old = files.tls.context
    files.path.write_text("another")
    for files.why in ("Permission denied", "Permission denied", "Too many open files"):
        files.tls.refresh()
        assert files.tls.context is old
    files.why = None
    files.tls.refresh()
    assert files.tls.context is not old
    assert caplog.messages == [
        "engines: Permission denied; keeping the previous certificates",
        "engines: Too many open files; keeping the previous certificates",
    ]


def test_one_that_was_read_is_not_read_again_until_it_changes(files: Files) -> None:
    files.path.write_text("another")
    for files.why in ("Permission denied", None, None, None):
        files.tls.refresh()
    assert files.made == 3


def test_a_recurring_trouble_is_logged_again(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    for number, files.why in enumerate(("empty", None, "empty")):
        files.path.write_text("x" * number)
        files.tls.refresh()
    assert len(caplog.messages) == 2
