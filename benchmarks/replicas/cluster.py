"""Simulated engines and routers as processes, and their metrics."""

import asyncio
import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.overload.processes import cpu_seconds, process, ready
from benchmarks.system.ports import free_port

__all__ = ["Cluster", "cluster", "metrics_of", "summed"]


@dataclass(frozen=True, slots=True)
class Cluster:
    """Ports of the engines and of the routers, and the routers' process ids."""

    engines: list[int]
    routers: list[int]
    pids: list[int]

    def cpu_seconds(self) -> float:
        """What all routers have computed."""
        return sum(map(cpu_seconds, self.pids))


@contextlib.contextmanager
def _engines(count: int, flags: Sequence[str]) -> Iterator[list[int]]:
    command = [sys.executable, "-m", "router.simulator", "--role", "decode"]
    with subprocess.Popen(
        [*command, "--count", str(count), *flags], stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        lines = [running.stdout.readline() for _ in range(count)]
        try:
            yield [int(line.split()[1].rpartition(":")[2]) for line in lines]
        finally:
            running.kill()


@contextlib.contextmanager
def cluster(
    engines: int, engine_flags: Sequence[str], replicas: int, *, told: bool, flags: Sequence[str]
) -> Iterator[Cluster]:
    """Ready routers in front of engines. `told`: they report to each other."""
    with contextlib.ExitStack() as stack:
        found = stack.enter_context(_engines(engines, engine_flags))
        ports, admin = ([free_port() for _ in range(replicas)] for _ in range(2))
        common = [word for port in found for word in ("--decode", f"http://127.0.0.1:{port}")]
        common += [*flags, "--log-level", "error"]
        if told:
            urls = ",".join(f"http://127.0.0.1:{port}" for port in admin)
            common += ["--peers", urls, "--peer-key", "only-for-replicas"]
        pids = []
        for port, admin_port in zip(ports, admin, strict=True):
            own = ("--host", "127.0.0.1", "--port", str(port), "--admin-port", str(admin_port))
            pids.append(stack.enter_context(process("router", "serve", *own, *common)).pid)
        for port in ports:
            ready(f"http://127.0.0.1:{port}/ready")
        yield Cluster(found, ports, pids)


async def metrics_of(port: int) -> str:
    """An engine's gauges and counters."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    text = await reader.read(-1)
    writer.close()
    return text.decode()


def summed(text: str, names: str) -> float:
    """The sum of an engine's series with these names (a regular expression)."""
    pattern = rf"^vllm:(?:{names})\{{[^}}]*\}} (\S+)"
    return sum(map(float, re.findall(pattern, text, re.MULTILINE)))
