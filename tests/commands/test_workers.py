"""What the parent of several workers looks at before it starts them."""

import logging
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from router.commands import workers


@pytest.mark.parametrize(("free", "lines"), [(64 << 20, 1), (256 << 20, 0)])
def test_too_little_room_for_the_metrics_is_told_at_the_start(
    free: int, lines: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    workers._check_room(Path("/dev/shm"), 8, 1000)
    assert len(caplog.records) == lines
    for record in caplog.records:
        assert record.levelno == logging.WARNING
        assert "8 workers and 1000 engines need 111 MB in /dev/shm" in record.message
        assert "has room for 67" in record.message
