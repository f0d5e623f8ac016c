"""What the parent of several workers looks at before it starts them, and until they serve."""

import logging
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from router.commands import workers


@pytest.mark.parametrize(("free", "lines"), [(64 << 20, 1), (256 << 20, 0)])
def test_too_little_room_for_the_metrics_is_logged_at_startup(
    free: int, lines: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    workers._check_room(Path("/dev/shm"), 8, 1000)
    assert len(caplog.records) == lines
    for record in caplog.records:
        assert record.levelno == logging.WARNING
        assert "8 workers and 1000 engines need 111 MB in /dev/shm" in record.message
        assert "has room for 67" in record.message


def test_all_workers_listen_only_when_each_of_them_does() -> None:
    listening = workers._Listening(2)
    listening.report(0)
    listening.report(0)
    assert not listening.is_new()
    listening.report(1)
    listening.forget(0)  # it ended before the check
    assert not listening.is_new()
    listening.report(0)
    assert [listening.is_new(), listening.is_new()] == [True, False]
    listening.forget(1)
    listening.report(1)
    assert not listening.is_new()  # it was notified before


def test_folders_of_processes_that_were_killed_are_removed_and_no_others(tmp_path: Path) -> None:
    killed, locks = workers._own_folder(tmp_path)
    (killed / "counter_0.db").write_bytes(b"x")
    os.close(locks)
    other = tmp_path / "pd-router-of-somebody"
    other.mkdir()
    mine, lock = workers._own_folder(tmp_path)
    found, next_lock = workers._own_folder(tmp_path)
    assert {*tmp_path.iterdir()} == {other, mine, found}
    os.close(lock)
    os.close(next_lock)
