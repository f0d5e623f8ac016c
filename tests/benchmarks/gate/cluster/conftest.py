"""A kubectl without a process and without a cluster."""

import functools
import json
import os
from collections.abc import Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import yaml

from benchmarks.gate.cluster.kubectl import Kubectl
from tests.benchmarks.gate.cluster.objects import Object, ended_pod, engine_pod, gate_job, node
from tests.deploy.conftest import overlay

READY = [engine_pod(f"engine-{number}", ready=True) for number in range(8)]


@functools.cache
def rendered() -> str:
    """What `kubectl kustomize` prints of the gate's overlay."""
    return yaml.safe_dump_all(overlay("gate").objects)


class FakeCluster:
    """kubectl's answers, and its recorded calls.

    Answers are by kind (of `engines` and `gate` a list of answers, of which the last one stays).
    Others are `forbidden` rights, `fail` (a message for every command), and `refused` (per command
    the number of calls without an answer, which may have had an effect).
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.applied: list[list[Object]] = []
        """The objects of each `apply`."""
        self.answers: dict[str, Any] = {
            "nodes": [node("n0")],
            "pods": [],
            "engines": [READY],
            "gate": [[ended_pod(0)]],
            "jobs": [gate_job()],
        }
        self._log = ""

    def save(self, **answers: Any) -> None:
        """Change some answers."""
        self.answers |= answers

    def says(self, log: str) -> None:
        """What the gate's log holds."""
        self._log = log

    def did(self, *words: str) -> bool:
        """Whether a command began so."""
        return any(each[: len(words)] == words for each in self.calls)

    def run(self, arguments: Sequence[str], given: str | None) -> CompletedProcess[str]:
        """One command."""
        self.calls.append(tuple(arguments))
        command, *options = arguments
        if given is not None:
            self.applied.append(list(yaml.safe_load_all(given)))
        if command != "kustomize" and "fail" in self.answers:
            return _ended(1, error=self.answers["fail"])
        refused = self.answers.get("refused", {})
        if refused.get(command, 0) > 0:
            refused[command] -= 1
            return _ended(1, error="The connection to the server was refused")
        match command:
            case "kustomize":
                return _ended(0, rendered())
            case "auth":
                is_forbidden = " ".join(options[1:3]) in self.answers.get("forbidden", ())
                return _ended(int(is_forbidden), "no" if is_forbidden else "yes")
            case "get":
                return _ended(0, json.dumps({"items": self._items(*options)}))
            case "logs":
                return _ended(0, self._log)
        return _ended(0)

    def _items(self, kind: str, *options: str) -> Any:
        selectors = [each for each in options if each.startswith("--selector=")]
        if not selectors or kind == "jobs":
            return self.answers[kind]
        following = self.answers["gate" if "gate" in selectors[0] else "engines"]
        return following.pop(0) if len(following) > 1 else following[0]


def _ended(status: int, output: str = "", error: str = "") -> CompletedProcess[str]:
    return CompletedProcess((), status, output, error)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The kubectl that is found; it answers yes."""
    path = tmp_path / "bin" / "kubectl"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\necho yes\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
    return path


@pytest.fixture
def cluster(program: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """What kubectl is asked, and answers; no process is started."""
    found = FakeCluster()

    def done(_: Kubectl, arguments: Sequence[str], given: str | None) -> CompletedProcess[str]:
        return found.run(arguments, given)

    monkeypatch.setattr(Kubectl, "_done", done)
    return found
