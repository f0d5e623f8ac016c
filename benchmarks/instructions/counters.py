"""What counts: valgrind's callgrind for instructions, strace for system calls.

Counting is switched on while the process runs, so a count has neither start nor warm-up.
"""

import re
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from benchmarks.system import procfs
from benchmarks.system.processes import StartError

INSTRUCTIONS = "instructions"
COMMAND_S = 60.0


class Tool(Protocol):
    """Counts what a process tree does."""

    def wrap(self, command: Sequence[str]) -> list[str]:
        """The command line that starts `command` so that it can be counted."""

    def begin(self, root: int) -> None:
        """The warm-up is over."""

    def count(self, root: int, work: Callable[[], None]) -> Counter[str]:
        """What the process `root` and those below it do while `work` runs."""


def missing(program: str) -> str | None:
    """What to install before it can be counted with; None: it is there.

    The C compiler is `gcc` here, though any `cc` will do.
    """
    if shutil.which("cc" if program == "gcc" else program):
        return None
    return f"{program} is not installed: apt-get install {program}"


class Callgrind:
    """User-space instructions, of all threads, system calls and the kernel's work left out."""

    def __init__(self, place: Path) -> None:
        self._place = place
        # Its own pipes: other processes under valgrind are none of ours.
        self._prefix = f"--vgdb-prefix={place / 'vgdb-pipe'}"

    def wrap(self, command: Sequence[str]) -> list[str]:
        return [
            *("valgrind", "--quiet", "--tool=callgrind", "--instr-atstart=no"),
            # Forked workers are counted too, and can be switched.
            *("--trace-children=yes", "--vgdb=yes", self._prefix),
            f"--callgrind-out-file={self._place / 'callgrind.%p'}",
            *command,
        ]

    def begin(self, root: int) -> None:
        self._tell(root, "instrumentation on")

    def count(self, root: int, work: Callable[[], None]) -> Counter[str]:
        self._dump(root)
        work()
        return Counter({INSTRUCTIONS: self._dump(root)})

    def _dump(self, root: int) -> int:
        """Instructions since the last dump."""
        self._tell(root, "dump")
        parts = [path for path in self._place.glob("callgrind.*") if path.stat().st_size]
        total = sum(parse_callgrind(path.read_text(errors="replace")) for path in parts)
        for path in parts:
            path.unlink()
        return total

    def _tell(self, root: int, command: str) -> None:
        for each in procfs.tree(root):
            asking = ["vgdb", self._prefix, f"--pid={each.pid}", "--max-invoke-ms=10", command]
            done = subprocess.run(
                asking, capture_output=True, text=True, timeout=COMMAND_S, check=False
            )
            if done.returncode:
                raise StartError(f"vgdb: {command} failed", done.stderr)


def parse_callgrind(text: str) -> int:
    """The instructions in one dump of callgrind's. Raises ValueError where there is no total."""
    found = re.search(r"^(?:totals|summary): (\d+)", text, re.MULTILINE)
    if found is None:
        raise ValueError("callgrind's dump has no total")
    return int(found[1])


class Strace:
    """System calls by name. The process runs at its own speed until it is traced."""

    def __init__(self, place: Path) -> None:
        self._report = place / "strace"

    def wrap(self, command: Sequence[str]) -> list[str]:
        return list(command)

    def begin(self, root: int) -> None:
        pass

    def count(self, root: int, work: Callable[[], None]) -> Counter[str]:
        pids = [str(each.pid) for each in procfs.tree(root)]
        command = ["strace", "-f", "-c", "-o", str(self._report)]
        for pid in pids:
            command += ["-p", pid]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
            try:
                _wait_attached(tracer, len(pids))
                work()
            finally:
                tracer.send_signal(signal.SIGINT)
                tracer.communicate(timeout=COMMAND_S)
        return parse_strace(self._report.read_text())


def _wait_attached(tracer: "subprocess.Popen[str]", processes: int) -> None:
    assert tracer.stderr is not None
    said = []
    for line in tracer.stderr:
        said.append(line)
        processes -= " attached" in line
        if not processes:
            return
    raise StartError("strace may not trace here", "".join(said))


def parse_strace(text: str) -> Counter[str]:
    """Calls by name, from the table of `strace -c`."""
    calls: Counter[str] = Counter()
    for line in text.splitlines():
        fields = line.split()
        # % time, seconds, usecs/call, calls, errors where there are some, name
        if len(fields) in (5, 6) and fields[3].isdigit() and fields[-1] != "total":
            calls[fields[-1]] += int(fields[3])
    return calls
