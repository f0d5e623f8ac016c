"""The very RUN steps of the Dockerfile, without an engine for images: in a folder instead of a
root, with its absolute paths moved there. `make test-image` runs them: it needs a package index,
and some minutes.

What this leaves out: apt-get, the base image, users, and the layers.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.dockerfile import Stage, name_of, read
from tests.deploy.places import DOCKERFILE, ROOT
from tests.docs.running import answers, process
from tests.ports import own_ports

pytestmark = pytest.mark.timeout(1500)

STAGES = {name_of(stage): stage for stage in read(DOCKERFILE.read_text())}

MOVED = re.compile(r"(?<![\w./-])/(opt|wheels|src)\b")

NOT_FOR_US = re.compile(r"^apt-get ")
"""It would change this machine: gcc is expected to be there."""


class Root:
    """A folder in place of a file system's root, with a Python and a pip of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in ("opt", "wheels", "src"):
            (folder / name).mkdir(parents=True)
        # In the base image /usr/local/bin/python has pip.
        subprocess.run([sys.executable, "-m", "venv", folder / "usr"], check=True)
        kept = {name: text for name, text in os.environ.items() if not name.startswith("PIP_REQ")}
        path = f"{folder}/usr/bin:{os.environ['PATH']}"
        self._variables = {**kept, "PATH": path, "PYTHONDONTWRITEBYTECODE": ""}

    def moved(self, text: str) -> str:
        """A command with its paths in the folder."""
        return MOVED.sub(lambda found: f"{self._folder}{found[0]}", text)

    def path(self, text: str) -> Path:
        """A path of the image."""
        return Path(self.moved(text))

    def build(self, stage: Stage) -> None:
        """Carry out a stage. Every step must end with status 0."""
        arguments: dict[str, str] = {}
        for one in stage:
            match one.name:
                case "ARG":
                    name, _, value = one.text.partition("=")
                    arguments[name] = value
                case "ENV":
                    for word in one.words:
                        name, _, value = word.partition("=")
                        self._variables[name] = self.moved(value)
                case "COPY":
                    self._copy(one.words)
                case "RUN" if not NOT_FOR_US.match(one.text):
                    self._run(one.text, arguments)

    def _copy(self, words: list[str]) -> None:
        *sources, target = words
        for source in sources:
            found = ROOT / source
            place = self.path("/src") / target
            if found.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "*.so", "results")
                shutil.copytree(found, place, ignore=ignored)
            else:
                shutil.copy(found, place)

    def _run(self, text: str, arguments: dict[str, str]) -> None:
        done = subprocess.run(
            ["sh", "-c", self.moved(text)],
            cwd=self.path("/src"),
            env={**self._variables, **arguments},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Root]:
    yield Root(tmp_path / "root")
    shutil.rmtree(tmp_path)


def output(*command: object) -> str:
    """What a command prints; it must end with status 0."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_routers_steps_make_a_router_that_is_compiled_and_answers(root: Root) -> None:
    root.build(STAGES["build"])
    binaries = root.path("/opt/pd-router/bin")
    assert not (binaries / "pd-bench").exists()
    assert not (binaries / "pip").exists()
    assert list(root.path("/opt/pd-router").rglob("compiled__mypyc*.so"))
    port, behind = own_ports([0, 1])
    engines, serve = (
        f"exec {binaries}/pd-router simulate-engines --prefill 0 --decode 1 --port {behind}",
        f"exec {binaries}/pd-router serve --decode http://127.0.0.1:{behind} --port {port}",
    )
    with process(engines) as first, process(serve) as second:
        answers(f"http://127.0.0.1:{port}", first, second)


def test_the_gates_steps_make_a_gate_with_aiperf(root: Root) -> None:
    root.build(STAGES["gate-build"])
    binaries = root.path("/opt/pd-router-gate/bin")
    assert not (binaries / "pd-router").exists()
    assert "--platform" in output(binaries / "pd-bench", "validate", "--help")
    [version] = re.findall(r"aiperf==([\d.]+)", (ROOT / "requirements/aiperf.in").read_text())
    assert version in output(root.path("/opt/aiperf") / "aiperf/bin/aiperf", "--version")
