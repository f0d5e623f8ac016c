"""Certificates that change while the router runs, and such as cannot be read."""

import ssl
from pathlib import Path

import pytest

from router.net.tls_files import TLSFiles


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


def test_the_same_trouble_is_told_again_when_it_was_over(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    for number, files.why in enumerate(("empty", None, "empty")):
        files.path.write_text("x" * number)
        files.tls.refresh()
    assert len(caplog.messages) == 2
