"""Process groups in /proc: living processes, their groups, and files of killed ones.

Linux only: reads /proc.
"""

import contextlib
import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "Process",
    "identify",
    "is_alive",
    "kill_all_but_janitors",
    "members",
    "remove_unused",
    "shared_memory",
    "signal_group",
]

# What Python's multiprocessing makes: shared memory blocks and semaphores.
_SHARED = re.compile(r"/dev/shm/((?:psm_|sem\.mp-)\S+)")
_DEAD = "ZX"


@dataclass(frozen=True)
class Process:
    """A process for certain: its id and its start, since ids are used again."""

    pid: int
    started: int
    """In clock ticks since the machine's boot."""


@dataclass(frozen=True)
class _Stat:
    state: str
    group: int
    started: int


def identify(pid: int) -> Process | None:
    """The process that has this id now, if there is one."""
    stat = _stat(pid)
    return Process(pid, stat.started) if stat else None


def is_alive(process: Process) -> bool:
    """Whether exactly this process still runs; one that awaits its parent's `wait` does not."""
    stat = _stat(process.pid)
    return stat is not None and stat.started == process.started and stat.state not in _DEAD


def members(group: int) -> list[int]:
    """Ids of the living processes of a process group."""
    ids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    stats = ((pid, _stat(pid)) for pid in ids)
    return [pid for pid, stat in stats if stat and stat.group == group and stat.state not in _DEAD]


def signal_group(group: int, number: signal.Signals) -> None:
    """Signal every member; a group that is gone is no error."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


def kill_all_but_janitors(group: int) -> None:
    """SIGKILL the members, save for Python's resource trackers: a tracker removes the semaphores
    and shared memory of the processes that it served when they are gone, and ends."""
    for pid in members(group):
        if not _is_janitor(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    signal_group(group, signal.SIGCONT)  # a tracker may be frozen


def _is_janitor(pid: int) -> bool:
    try:
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def shared_memory(group: int) -> set[str]:
    """Names under /dev/shm that a group's processes have mapped."""
    return set().union(*(_mapped(pid) for pid in members(group)))


def remove_unused(names: set[str]) -> set[str]:
    """Remove those of `names` under /dev/shm without a mapping; return the removed ones.

    A process that is killed leaves its shared memory behind, 160-250 MB for each engine.
    """
    everyone = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
    used: set[str] = set().union(*(_mapped(pid) for pid in everyone))
    left = {name for name in names - used if Path("/dev/shm", name).exists()}
    for name in left:
        Path("/dev/shm", name).unlink(missing_ok=True)
    return left


def _mapped(pid: int) -> set[str]:
    try:
        return set(_SHARED.findall(Path(f"/proc/{pid}/maps").read_text()))
    except OSError:  # gone meanwhile, or not ours to look into
        return set()


def _stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The second field is the command in brackets and may hold spaces and brackets itself.
    fields = text.rpartition(") ")[2].split()
    return _Stat(state=fields[0], group=int(fields[2]), started=int(fields[19]))
