"""Configuration files for tests."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _no_settings(no_settings: None) -> None:
    """In all tests of this folder."""


@pytest.fixture
def write(tmp_path: Path):
    def write_file(content: str | bytes) -> Path:
        path = tmp_path / "router.yaml"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write_file
