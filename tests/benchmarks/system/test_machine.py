"""What a figure was measured with is known, or said to be unknown."""

import pytest

from benchmarks.system.machine import revision


def test_without_git_the_commit_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    found = revision()
    assert (found["commit"], found["router_changed"]) == (None, None)
