"""Secrets given as flags are gone from the command line once the process has re-executed itself."""

import os
import sys

import pytest

from router.commands.reexec import hide_secrets, re_execute

PYTHON = ["python", "-X", "dev", "-m", "router"]


class Begun(Exception):
    """The process is re-executed."""


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, str]]]:
    """The commands and the new variables with which the process was re-executed."""
    found: list[tuple[list[str], dict[str, str]]] = []

    def begin(path: str, arguments: list[str], environment: dict[str, str]) -> None:
        assert path == arguments[0] == sys.executable
        assert environment.items() >= dict(os.environ).items()
        found.append((arguments[1:], dict(environment.items() - dict(os.environ).items())))
        raise Begun

    monkeypatch.setattr(os, "execve", begin)
    return found


def called(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    """The process was called so."""
    monkeypatch.setattr(sys, "argv", ["router/__main__.py", *arguments])
    monkeypatch.setattr(sys, "orig_argv", [*PYTHON, *arguments])


@pytest.mark.parametrize(
    ("given", "kept", "variables"),
    [
        (["--engine-api-key", "k"], [], {"PD_ROUTER_ENGINE_API_KEY": "k"}),
        (["--engine-api-key=k=="], [], {"PD_ROUTER_ENGINE_API_KEY": "k=="}),
        (
            ["--port", "1", "--peer-key", "p", "--engine-api-key", "k", "--host", "h"],
            ["--port", "1", "--host", "h"],
            {"PD_ROUTER_ENGINE_API_KEY": "k", "PD_ROUTER_PEER_KEY": "p"},
        ),
        (["--peer-key", "first", "--peer-key", "last"], [], {"PD_ROUTER_PEER_KEY": "last"}),
    ],
)
def test_secrets_move_from_the_flags_into_the_environment(
    begun: list[tuple[list[str], dict[str, str]]],
    monkeypatch: pytest.MonkeyPatch,
    given: list[str],
    kept: list[str],
    variables: dict[str, str],
) -> None:
    called(monkeypatch, "serve", *given)
    with pytest.raises(Begun):
        hide_secrets()
    assert begun == [([*PYTHON[1:], "serve", *kept], variables)]


def test_without_secrets_the_process_continues(
    begun: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    called(monkeypatch, "serve", "--api-key-file", "keys", "--port=1")
    hide_secrets()
    assert begun == []


@pytest.mark.parametrize("command", [["python", "-c", "..."], []])
def test_within_another_program_it_continues(
    begun: list[object], monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    called(monkeypatch, "serve", "--peer-key", "p")
    monkeypatch.setattr(sys, "orig_argv", command)
    hide_secrets()
    re_execute([], {})
    assert begun == []
