"""A kubectl that is a process and no cluster."""

import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.benchmarks.gate.cluster import fake_kubectl
from tests.benchmarks.gate.cluster.objects import Object, ended_pod, engine_pod, gate_job, node
from tests.deploy.conftest import overlay

READY = [engine_pod(f"engine-{number}", ready=True) for number in range(8)]


class FakeCluster:
    """kubectl's answers, and its recorded calls."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        program = folder / "kubectl"
        script = Path(shutil.copy(fake_kubectl.__file__, folder / "fake_kubectl.py"))
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {script} "$@"\n')
        program.chmod(0o755)
        (folder / "rendered.yaml").write_text(yaml.safe_dump_all(overlay("gate").objects))
        (folder / "gate.log").write_text("")
        self.answers: dict[str, Any] = {
            "nodes": [node("n0")],
            "pods": [],
            "engines": [READY],
            "gate": [[ended_pod(0)]],
            "jobs": [gate_job()],
        }
        self.save()

    def save(self, **answers: Any) -> None:
        """Change some answers."""
        self.answers |= answers
        (self.folder / "answers.json").write_text(json.dumps(self.answers))

    def says(self, log: str) -> None:
        """What the gate's log holds."""
        (self.folder / "gate.log").write_text(log)

    @property
    def calls(self) -> list[Sequence[str]]:
        """The commands so far."""
        return [each for each, _ in self._written()]

    @property
    def applied(self) -> list[list[Object]]:
        """The objects of each `apply`."""
        return [
            list(yaml.safe_load_all(given))
            for words, given in self._written()
            if words[0] == "apply"
        ]

    def _written(self) -> list[tuple[Sequence[str], str]]:
        path = self.folder / "calls.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(words, given) for words, given in map(json.loads, lines)]

    def did(self, *words: str) -> bool:
        """Whether a command began so."""
        return any(tuple(each[: len(words)]) == words for each in self.calls)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    found = FakeCluster(tmp_path / "kubectl")
    monkeypatch.setenv("PATH", f"{found.folder}:{os.environ['PATH']}")
    return found
