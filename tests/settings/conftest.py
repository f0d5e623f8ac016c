"""Settings are read without the environment of whoever runs the tests."""

import os
from pathlib import Path

import pytest

from router.settings import (
    ENV_PREFIX,
)


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.upper().startswith(ENV_PREFIX):
            monkeypatch.delenv(name)


@pytest.fixture
def write(tmp_path: Path):
    def write_file(content: str | bytes) -> Path:
        path = tmp_path / "router.yaml"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write_file
