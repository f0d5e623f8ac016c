"""The processes of a comparison: simulated engines, the router; and what befalls an engine.

Everything that is started ends with its context.
"""

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import orjson

from benchmarks.gate.ab.options import NOWHERE, Fault
from benchmarks.gate.endpoint.control_client import Unanswered, control_client
from benchmarks.system.processes import REPOSITORY, Process, StartError

# Far more than a start takes on a busy machine.
START_S, POLL_S, ASK_S = 60.0, 0.05, 5.0
T = TypeVar("T")
STRATEGY = "--load-balancing-strategy: "
READY = re.compile(r"^ready (\S+)$", re.MULTILINE)


@contextmanager
def simulated(count: int, flags: Sequence[str], log: Path) -> Iterator[tuple[str, ...]]:
    """Start `count` engines; their URLs. Raises StartError."""

    def ready(text: str) -> tuple[str, ...] | None:
        urls = READY.findall(text)
        return tuple(urls) if len(urls) == count else None

    command = [sys.executable, "-m", "router.simulator", "--count", str(count), *flags]
    with Process(command, log) as process:
        yield _said(process, log, "simulated engines", ready)


@contextmanager
def router(policy: str, engines: Sequence[str], flags: Sequence[str], log: Path) -> Iterator[str]:
    """The URL of a router with that policy in front of whole engines. Raises StartError."""
    command = [
        *(sys.executable, "-m", "router", "serve", "--host", "127.0.0.1", "--port", "0"),
        *("--load-balancing-strategy", policy, "--decode", ",".join(engines)),
        # Answers name the worker of each request.
        *("--log-format", "json", "--engine-header", "on", *flags),
    ]
    with Process(command, log) as process:
        yield _said(process, log, f"router with {policy}", listening)


def refused(policies: Sequence[str], engines: Sequence[str], flags: Sequence[str]) -> str | None:
    """The router's error for one of the policies with these flags; None if it starts with all.
    Needs no network."""
    for policy in policies:
        command = [
            *(sys.executable, "-m", "router", "explain", "-", "--route", "/v1/completions"),
            *("--load-balancing-strategy", policy, "--decode", ",".join(engines) or NOWHERE),
            *flags,
        ]
        ended = subprocess.run(
            command, cwd=REPOSITORY, input=b'{"prompt": ""}', capture_output=True, check=False
        )
        if ended.returncode:
            why = ended.stderr.decode(errors="replace").strip().removeprefix("pd-router: ")
            if why.startswith(STRATEGY):
                return f"--policies: {policy}: {why.removeprefix(STRATEGY)}"
            return f"--router-options: {why}"
    return None


def listening(text: str) -> str | None:
    """The address in the router's log at which it listens; the last line may be incomplete."""
    for line in text.splitlines():
        try:
            said = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if isinstance(said, dict) and said.get("message") == "listening":
            return str(said["url"])
    return None


def _said(process: Process, log: Path, name: str, find: Callable[[str], T | None]) -> T:
    """Wait until `find` finds something in the log. Raises StartError."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        ended = process.ended
        if (found := find(log.read_text(errors="replace"))) is not None:
            return found
        if ended:
            raise StartError(f"{name}: ended at once", process.log_tail())
        time.sleep(POLL_S)
    raise StartError(f"{name}: did not start within {START_S:g} s", process.log_tail())


class Injected:
    """A fault to be injected; `wrong` is the reason why it could not be."""

    def __init__(self, fault: Fault, engines: Sequence[str]) -> None:
        self._fault, self._url = fault, engines[fault.engine - 1]
        self.wrong: str | None = f"the measured phase was over before {fault.at:g} s"

    async def happen(self) -> None:
        """Inject it during a measured phase. Never raises."""
        await asyncio.sleep(self._fault.at)
        self.wrong = await self._tell(self._fault.body)

    async def end(self) -> str | None:
        """Take the fault back. Returns the error if that fails."""
        return await self._tell({})

    async def _tell(self, faults: dict[str, object]) -> str | None:
        try:
            async with control_client(self._url, {}) as asked:
                answer = await asked.endpoint("/sim/faults", faults, timeout=ASK_S)
        except Unanswered as error:
            return f"{self._url}/sim/faults: {error}"
        if answer.status == 200:
            return None
        return f"{self._url}/sim/faults: status {answer.status}; only simulated engines have faults"
