"""Replicas with a common key start with a common hash seed."""

import os
import sys
from typing import Any

import pytest

from router.commands.reexec import share_hash_seed
from router.settings import load

FLAGS = {
    "decode": "http://d0",
    "admin_port": "9",
    "peers": "http://127.0.0.1:9",
    "peer_key": "secret",
}


class Begun(Exception):
    """The process is re-executed."""


@pytest.fixture
def seeds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Those with which the process was re-executed."""
    found: list[str] = []

    def begin(path: str, arguments: list[str], environment: dict[str, str]) -> None:
        assert (path, arguments) == (sys.executable, [sys.executable, "-m", "router", "serve"])
        assert environment.items() >= dict(os.environ).items()
        found.append(environment["PYTHONHASHSEED"])
        raise Begun

    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    monkeypatch.setattr(os, "execve", begin)
    monkeypatch.setattr(sys, "argv", ["router/__main__.py", "serve"])
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "router", "serve"])
    return found


def test_a_common_key_is_a_common_seed(seeds: list[str]) -> None:
    for key in ("secret", "secret", "another"):
        with pytest.raises(Begun):
            share_hash_seed(load({**FLAGS, "peer_key": key}))
    one, same, other = map(int, seeds)
    assert one == same != other
    assert 0 < min(one, other) <= max(one, other) < 1 << 32


@pytest.mark.parametrize(
    "flags",
    [
        {"peers": "", "peer_key": None},
        {"peer_key": None},
        {"prefix_cache": "off"},
    ],
    ids=["alone", "no key", "no history"],
)
def test_without_a_shared_seed_the_process_continues(
    seeds: list[str], flags: dict[str, Any]
) -> None:
    given = {name: value for name, value in {**FLAGS, **flags}.items() if value}
    share_hash_seed(load(given))
    assert seeds == []


def test_a_seed_that_is_given_stays(seeds: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    share_hash_seed(load(FLAGS))
    assert seeds == []


@pytest.mark.parametrize("command", [["python", "-c", "..."], []])
def test_within_another_program_it_is_not_re_executed(
    seeds: list[str], monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setattr(sys, "orig_argv", command)
    share_hash_seed(load(FLAGS))
    assert seeds == []
