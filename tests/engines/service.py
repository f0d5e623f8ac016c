"""One server process in its own process group: started, awaited, frozen, killed, cleaned up after.

Its identity is kept in a file, so that what one command started another can stop.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.engines import processes
from tests.engines.layout import LabError

__all__ = ["Service"]

LOG_TAIL = 25
POLL = 0.1
GRACE = 10.0
"""Seconds from SIGTERM to SIGKILL; an idle engine takes about 2."""


class Service:
    """A server at `url`, ready when `url + ready_path` answers 200. `environment` is all of it."""

    def __init__(
        self,
        name: str,
        url: str,
        ready_path: str,
        command: tuple[str, ...],
        environment: Mapping[str, str],
        run: Path,
    ) -> None:
        self.name = name
        self.url = url
        self.log = run / f"{name}.log"
        self._ready_url = url + ready_path
        self._command = command
        self._environment = environment
        self._state = run / f"{name}.json"

    def __repr__(self) -> str:
        return f"<{self.name} at {self.url}>"

    @property
    def process(self) -> processes.Process | None:
        """The running process, whoever started it."""
        process = self._recorded()[0]
        return process if process and processes.is_alive(process) else None

    @property
    def is_outdated(self) -> bool:
        """Whether it runs, but was started with other options than it would be now."""
        return self.process is not None and self._state_now().get("command") != [*self._command]

    @property
    def port(self) -> int:
        """The port it listens on."""
        port = urlsplit(self.url).port
        assert port is not None
        return port

    def start(self) -> None:
        """Start it and do not wait. Raises LabError if it runs or its port is taken."""
        if self.process:
            raise LabError(f"{self.name} already runs")
        self._clean_up()
        if _is_listening(self.port):
            raise LabError(f"port {self.port} of {self.name} is taken by another process")
        self._state.parent.mkdir(parents=True, exist_ok=True)
        if self.log.exists():
            shutil.move(self.log, self.log.with_suffix(".previous.log"))
        self._record(processes.identify(self._spawn()), set())

    def wait_ready(self, seconds: float) -> None:
        """Raises LabError with the end of its log when it dies or takes longer than `seconds`.

        That the process lives is part of it: a stranger on the port would answer as well.
        """
        deadline = time.monotonic() + seconds
        while True:
            if self.process is None:
                raise LabError(f"{self.name} died while starting\n{self.tail()}")
            if self.is_ready():
                break
            if time.monotonic() > deadline:
                raise LabError(f"{self.name} not ready after {seconds:.0f} s\n{self.tail()}")
            time.sleep(POLL)
        self._remember_memory()

    def is_ready(self) -> bool:
        """Whether the ready path answers 200 now."""
        try:
            with urllib.request.urlopen(self._ready_url, timeout=2) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def stop(self) -> None:
        """SIGTERM, then SIGKILL to the rest of the group. No error if it does not run."""
        process = self.process
        if process:
            self._remember_memory()
            self.thaw()
            os.kill(process.pid, signal.SIGTERM)
            self._wait_gone(GRACE)
        self._kill_group()
        self._clean_up()

    def kill(self) -> None:
        """SIGKILL to the whole group, as a crash or the kernel's memory killer would."""
        self._remember_memory()
        self._kill_group()
        self._clean_up()

    def freeze(self) -> None:
        """Stop the clock of all its processes: what arrives now waits unread in its sockets."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Undo `freeze`."""
        self._signal(signal.SIGCONT)

    def tail(self) -> str:
        """The last lines of its log."""
        if not self.log.exists():
            return "(no log)"
        lines = self.log.read_text(errors="replace").splitlines()[-LOG_TAIL:]
        return "\n".join((f"--- end of {self.log}", *lines))

    def _spawn(self) -> int:
        """Unlike subprocess.Popen this lets a process outlive the one that started it."""
        with self.log.open("wb") as log:
            actions = (
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, log.fileno(), 1),
                (os.POSIX_SPAWN_DUP2, log.fileno(), 2),
            )
            command = self._command
            return os.posix_spawn(
                command[0], command, self._environment, file_actions=actions, setsid=True
            )

    def _signal(self, number: signal.Signals) -> None:
        if process := self.process:
            processes.signal_group(process.pid, number)

    def _kill_group(self) -> None:
        """SIGKILL all but Python's resource tracker, which then removes what the others left: most
        semaphores can be found in no other way.

        The leader may be dead and its children not: the group's id is the leader's.
        """
        process = self._recorded()[0]
        if process is None:
            return
        if processes.identify(process.pid) not in (None, process):
            return  # the id belongs to a stranger by now
        processes.kill_all_but_janitors(process.pid)
        self._wait_gone(GRACE)
        processes.signal_group(process.pid, signal.SIGKILL)

    def _wait_gone(self, seconds: float) -> None:
        process = self._recorded()[0]
        if process is None:
            return
        deadline = time.monotonic() + seconds
        while processes.members(process.pid) and time.monotonic() < deadline:
            time.sleep(POLL / 2)
        with contextlib.suppress(ChildProcessError):  # another process started it
            os.waitpid(process.pid, os.WNOHANG)

    def _remember_memory(self) -> None:
        process, known = self._recorded()
        if process:
            self._record(process, known | processes.shared_memory(process.pid))

    def _clean_up(self) -> None:
        processes.remove_unused(self._recorded()[1])
        self._state.unlink(missing_ok=True)

    def _record(self, process: processes.Process | None, memory: set[str]) -> None:
        if process is None:
            raise LabError(f"{self.name} died at once\n{self.tail()}")
        state = {
            "pid": process.pid,
            "started": process.started,
            "command": self._command,
            "memory": sorted(memory),
        }
        self._state.write_text(json.dumps(state))

    def _recorded(self) -> tuple[processes.Process | None, set[str]]:
        state = self._state_now()
        if not state:
            return None, set()
        return processes.Process(state["pid"], state["started"]), set(state["memory"])

    def _state_now(self) -> dict[str, Any]:
        try:
            state: dict[str, Any] = json.loads(self._state.read_text())
        except (OSError, json.JSONDecodeError):
            return {}
        return state


def _is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
