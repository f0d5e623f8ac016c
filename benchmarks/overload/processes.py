"""A router, its engines and clients as processes, and their resources."""

import contextlib
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["children", "cpu_seconds", "metric", "peak_bytes", "process", "ready"]

SECONDS = 60.0
"""For a process to start."""


@contextlib.contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """`python -m ...`, ended with the context."""
    command = [sys.executable, "-m", *arguments]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as running:
        try:
            yield running
        finally:
            running.kill()


def ready(url: str) -> None:
    """Wait until this is answered with 200."""
    deadline = time.monotonic() + SECONDS
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(url):
            return
        if time.monotonic() > deadline:
            raise TimeoutError(url)
        time.sleep(0.05)


def metric(port: int, name: str) -> float:
    """The sum of a router's series with this prefix of the line."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had (VmHWM)."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if "VmHWM" in line)


def cpu_seconds(pid: int) -> float:
    """What a process has computed."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> Sequence[int]:
    """A process's children."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
