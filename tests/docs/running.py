"""Runs the commands of a block as a reader would, on ports and in a directory of their own."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gate.analysis.verdict import Exit
from tests.docs.blocks import ROOT, Block, Command, commands
from tests.ports import own_port, own_ports
from tests.shims import shims

__all__ = ["Pools", "answers", "checkout", "pools", "process", "run"]

BIN = Path(sys.executable).parent

SECONDS = 200.0
"""A deadline for a command on a busy machine; only a test that fails meets it."""

VOID_RUNS = 4
"""Void runs of the gate that are retried: another process had the cores."""

POLL_SECONDS = 0.02

_PORT = re.compile(
    r"(?<=127\.0\.0\.1:)\d+|(?<=--port )\d+|(?<=--admin-port )\d+|(?<=--base-port )\d+"
)

ELSEWHERE = {"test": "-n"}
"""Targets of make that are not run, and the option that prints their commands instead: the tests
would run themselves."""


@dataclass(frozen=True)
class Pools:
    """Simulated engines and a router in front of them, by the host names of the documents."""

    urls: Mapping[str, str]

    @property
    def router(self) -> str:
        """The router's URL."""
        return self.urls["router"]

    def named(self, text: str) -> str:
        """`text` with their addresses in place of the names."""
        for name, url in self.urls.items():
            text = text.replace(f"http://{name}:8000", url)
        return text


@contextlib.contextmanager
def pools() -> Iterator[Pools]:
    """One prefill engine, two decode engines and a router, until the end of the context."""
    names = ("p0", "d0", "d1", "router")
    ports = dict(zip(names, own_ports(range(len(names))), strict=True))
    urls = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
    simulator = "exec simulator --step-ms 5"
    serve = f"exec pd-router serve --port {ports['router']}"
    started = (
        f"{simulator} --role prefill --port {ports['p0']}",
        f"{simulator} --role decode --port {ports['d0']} --count 2",
        f"{serve} --prefill {urls['p0']} --decode {urls['d0']},{urls['d1']} --routing-threshold 64",
    )
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(process(command)) for command in started]
        for url in urls.values():
            answers(url, *processes)
        yield Pools(urls)


def checkout(folder: Path) -> None:
    """Link the repository's contents into a folder. New files stay there."""
    for path in ROOT.iterdir():
        (folder / path.name).symlink_to(path)


def run(block: Block, folder: Path, given: Pools | None = None) -> str:
    """Run each command of the block in `folder`, in order; those that end with & run until all
    are done. Every command must end with status 0. Returns what they print, but for those, with the
    block's own ports."""
    named = sorted({int(port) for port in _PORT.findall(block.text)})
    free = dict(zip(named, own_ports(named), strict=True))
    processes: list[subprocess.Popen[bytes]] = []
    printed = ""
    with contextlib.ExitStack() as stack:
        for command in commands(block):
            text = _PORT.sub(lambda found: str(free[int(found[0])]), command.text)
            text = text if given is None else given.named(text)
            if command.is_background:
                processes.append(stack.enter_context(process(f"exec {text}", folder)))
            elif command.words[:2] == ("pd-router", "serve"):
                _serve_for_a_moment(text, folder)
            else:
                if processes and not _retries(text):
                    for port in _PORT.findall(text):
                        answers(f"http://127.0.0.1:{port}", *processes)
                printed += _done(block, _made(command) or text, folder)
    names = {str(port): str(name) for name, port in free.items()}
    return _PORT.sub(lambda found: names.get(found[0], found[0]), printed)


def _retries(text: str) -> bool:
    """Whether the command itself waits for a server that starts, as a reader's shell needs."""
    return text.startswith("curl ") and "--retry-connrefused" in text


def _made(command: Command) -> str | None:
    """A make target with the environment of these tests, nothing installed."""
    if command.words[0] != "make":
        return None
    target = command.words[1]
    options = ELSEWHERE.get(target, "")
    return f"make -C {ROOT} BIN={BIN} -o .venv/.runtime -o .venv/.installed {options} {target}"


def _done(block: Block, text: str, folder: Path) -> str:
    done = _ended(text, folder)
    for _ in range(VOID_RUNS if text.startswith("pd-bench validate") else 0):
        if done.returncode == Exit.VOID:
            done = _ended(text, folder)
    assert done.returncode == 0, f"{block.place}: {text}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _ended(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", text],
        cwd=folder,
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def _serve_for_a_moment(text: str, folder: Path) -> None:
    """Until it is ready; then it must end with status 0 after a signal."""
    port = own_port()
    with process(f"PD_ROUTER_PORT={port} exec {text}", folder) as router:
        answers(f"http://127.0.0.1:{port}", router)
        router.terminate()
        assert router.wait(SECONDS) == 0


def _environment() -> dict[str, str]:
    """The caller's, without the router's settings."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("PD_ROUTER_")}
    own = {"PD_ROUTER_HOST": "127.0.0.1", "PD_ROUTER_SHUTDOWN_GRACE": "0"}
    return {**kept, **own, "PATH": f"{shims()}:{BIN}:{os.environ['PATH']}", "COLUMNS": "200"}


@contextlib.contextmanager
def process(command: str, folder: Path = ROOT) -> Iterator[subprocess.Popen[bytes]]:
    """A process and all that it starts, ended with the context."""
    with subprocess.Popen(
        ["bash", "-c", command],
        cwd=folder,
        env=_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as started:
        try:
            yield started
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)


def answers(url: str, *processes: subprocess.Popen[bytes]) -> None:
    """Wait until a router there is ready or an engine healthy, while all processes live."""
    deadline = time.monotonic() + SECONDS
    while not _is_ready(url):
        assert time.monotonic() < deadline, f"{url} does not answer"
        ended = [process.args for process in processes if process.poll() is not None]
        assert not ended, f"ended early: {ended}"
        time.sleep(POLL_SECONDS)


def _is_ready(url: str) -> bool:
    status = _status(f"{url}/ready")
    return _status(f"{url}/health") == 200 if status == 404 else status == 200


def _status(url: str) -> int | None:
    try:
        with urllib.request.urlopen(url, timeout=SECONDS) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except OSError:
        return None
