"""Starts, queries and ends the processes of a bench, each in its own session.

Ends only what it started, by its process group.
"""

import os
import select
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import orjson

REPOSITORY = Path(__file__).resolve().parents[2]
# A router drains on SIGTERM; processes left after this time are killed.
STOP_S = 10.0
# For a process's output to reach the file after it has ended.
LOG_S = 2.0


class StartError(Exception):
    """A process did not start, or ended; `log` is the end of its output."""

    def __init__(self, message: str, log: str) -> None:
        super().__init__(message)
        self.log = log


class Process:
    """A started process whose output goes to a file, by a pipe, as in a container: to write to one
    costs a router other instructions. A context manager: leaving it ends it."""

    def __init__(self, command: Sequence[str], log: Path, *, talks: bool = False) -> None:
        self.command, self._log = list(command), log
        pipe = subprocess.PIPE if talks else subprocess.DEVNULL
        with log.open("ab") as file:
            self._log_writer = subprocess.Popen(
                ["cat"], stdin=subprocess.PIPE, stdout=file, start_new_session=True
            )
        output = self._log_writer.stdin
        assert output is not None
        with output:
            self._process = subprocess.Popen(
                self.command,
                cwd=REPOSITORY,
                stdin=pipe,
                stdout=pipe if talks else output,
                stderr=output,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()
        self._end_log()

    def _end_log(self) -> None:
        """Have all written that it said, unless something that it started still holds the pipe."""
        try:
            self._log_writer.wait(LOG_S)
        except subprocess.TimeoutExpired:
            self._log_writer.kill()
            self._log_writer.wait()

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            os.killpg(self.pid, number)

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def log_tail(self, lines: int = 12) -> str:
        """The end of the process's output."""
        if self.ended:
            self._end_log()
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    def wait_ready(self, url: str, timeout_s: float) -> None:
        """Poll `url` until it answers 200."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise StartError("ended before it was ready", self.log_tail())
            if _answers(url):
                return
            time.sleep(0.05)
        raise StartError(f"not ready after {timeout_s:.0f} s: {url}", self.log_tail())


class Child(Process):
    """A process of the bench's own, which speaks `benchmarks.system.control`."""

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        super().__init__([sys.executable, "-m", "benchmarks", *arguments], log, talks=True)
        self._pending = b""
        self.name = arguments[0]

    def ask(self, timeout_s: float = 10.0) -> dict[str, Any]:
        """Request the figures since the last request."""
        self.tell("")
        return self.expect("figures", timeout_s)

    def tell(self, line: str) -> None:
        """Send a command that has no answer."""
        self._pipe(self._process.stdin).write(line.encode() + b"\n")
        self._pipe(self._process.stdin).flush()

    def expect(self, event: str, timeout_s: float) -> dict[str, Any]:
        """Wait for the event of that name; the next one must be it."""
        said: dict[str, Any] = orjson.loads(self._line(timeout_s))
        if said["event"] != event:
            raise StartError(f"{self.name}: expected {event}, got {said['event']}", self.log_tail())
        return said

    def _line(self, timeout_s: float) -> bytes:
        output = self._pipe(self._process.stdout).fileno()
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._pending:
            left = max(deadline - time.monotonic(), 0.0)
            if not select.select([output], [], [], left)[0]:
                raise StartError(f"{self.name} silent for {timeout_s:.0f} s", self.log_tail())
            data = os.read(output, 65536)
            if not data:
                raise StartError(f"{self.name} ended", self.log_tail())
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    @staticmethod
    def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
        assert pipe is not None
        return pipe


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2.0) as response:
            return bool(response.status == 200)
    except urllib.error.HTTPError as answer:  # up, and not ready: 503
        answer.close()
        return False
    except (urllib.error.URLError, OSError):
        return False
