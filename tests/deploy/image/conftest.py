"""These tests install the images' contents: they run only with `-m image`."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """They are collected only on request."""
    return None if "image" in config.getoption("markexpr") else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """They all need a package index."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.image)
