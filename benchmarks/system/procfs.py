"""CPU time and memory of a process and its descendants on Linux.

Reads /proc only.
"""

import os
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")


@dataclass(frozen=True)
class Stat:
    """The fields of /proc/PID/stat that the bench reads. CPU in seconds, user and system."""

    pid: int
    parent: int
    cpu_s: float


def parse_stat(text: str) -> Stat:
    """Parse /proc/PID/stat. The name in parentheses may itself hold spaces and parentheses.

    CPU includes that of children that have ended and were waited for, so that the sum over a tree
    never falls.
    """
    pid, _, rest = text.partition(" (")
    fields = rest.rpartition(") ")[2].split()
    ticks = sum(int(value) for value in fields[11:15])
    return Stat(int(pid), int(fields[1]), ticks / TICKS_PER_S)


def tree(root: int) -> list[Stat]:
    """`root` and every process below it; empty when it has ended."""
    stats = {stat.pid: stat for stat in _all()}
    found = [stats[root]] if root in stats else []
    for stat in found:  # grows while it is walked: breadth first
        found.extend(child for child in stats.values() if child.parent == stat.pid)
    return found


def cpu_s(root: int) -> float:
    """CPU time of the tree in seconds."""
    return sum(stat.cpu_s for stat in tree(root))


def peak_rss_bytes(root: int) -> int:
    """Sum of the peak resident sizes of the tree."""
    return sum(_size(stat.pid, "VmHWM:") for stat in tree(root))


def rss_bytes(root: int) -> int:
    """Sum of the resident sizes of the tree now. Pages that processes share count in each."""
    return sum(_size(stat.pid, "VmRSS:") for stat in tree(root))


def machine_busy_s() -> float:
    """CPU time of everything on the machine in seconds: neither idle nor waiting for I/O."""
    fields = (PROC / "stat").read_text().splitlines()[0].split()[1:9]
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, fields)
    return (user + nice + system + irq + softirq + steal) / TICKS_PER_S


def _all() -> list[Stat]:
    stats = []
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                stats.append(parse_stat((entry / "stat").read_text()))
            except OSError:  # it ended while we looked
                continue
    return stats


def _size(pid: int, field: str) -> int:
    try:
        lines = (PROC / str(pid) / "status").read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return 0
