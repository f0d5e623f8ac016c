"""A router of several processes: its start, and the answers of each."""

import asyncio
import contextlib
import os
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.process import Process
from tests.forked import SECONDS
from tests.net.client import Answer, Client, request
from tests.net.engine import Call, ScriptedEngine
from tests.net.harness import eventually
from tests.net.payloads import COMPLETIONS, DONE, STREAM, token

WORKERS = 3
LEAST = (
    *("--load-balancing-strategy", "least_loaded", "--engine-stats-interval", "0.05"),
    *("--slow-start", "0"),  # on a busy machine the first probe of an engine may come late
)


def flags(*engines: ScriptedEngine, workers: int = WORKERS) -> list[str]:
    """A router of several processes in front of these engines."""
    urls = [word for engine in engines for word in ("--decode", engine.url)]
    return [*urls, *LEAST, "--workers", str(workers)]


CPU = "pd_router_process_cpu_seconds_total"


def workers_of(process: Process) -> list[int]:
    """The worker processes' ids."""
    path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(word) for word in path.read_text().split()]


def served_by(process: Process, client: Client) -> int:
    """The id of the router's process that holds its end of a client's connection."""
    local, remote = (client.writer.get_extra_info(n)[1] for n in ("sockname", "peername"))
    ends = f": 0100007F:{remote:04X} 0100007F:{local:04X} "
    # A line may come twice when the table changes while it is read.
    found = [line for line in Path("/proc/net/tcp").read_text().splitlines() if ends in line]
    (inode,) = {line.split()[9] for line in found}
    for pid in (process.pid, *workers_of(process)):
        with contextlib.suppress(OSError):  # it may end, or close a file, just now
            for fd in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if os.readlink(fd) == f"socket:[{inode}]":
                        return pid
    raise AssertionError("nobody")


async def until(holds: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait for a state without an event, with growing intervals, because queries cost the router
    time."""
    pause = 0.01
    try:
        async with asyncio.timeout(SECONDS):
            while True:
                if await holds():
                    return
                await asyncio.sleep(pause)
                pause = min(0.1, 1.5 * pause)
    except TimeoutError:
        raise AssertionError(what) from None


async def figure(process: Process, name: str) -> list[float]:
    """The values of a metric, from one of the workers."""
    client = await process.client()
    values = await _figure(client, name)
    client.leave()
    return values


async def _figure(client: Client, name: str) -> list[float]:
    text = (await client.get("/metrics")).body.decode()
    return [float(v) for v in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)]


async def all_tell(process: Process, holds: Callable[[Client], Awaitable[bool]], what: str) -> None:
    """Wait until every worker, asked over a connection of its own, has said so since one did not.

    Not until so many connections in a row agree: a busy machine may give them all to one worker.
    """
    agreed: set[int] = set()

    async def all_agree() -> bool:
        client = await process.client()
        says_so = await holds(client)
        agreed.add(served_by(process, client))
        client.leave()
        if not says_so:
            agreed.clear()
        return agreed >= set(workers_of(process))

    await until(all_agree, what)


async def everywhere(process: Process, name: str, value: float) -> None:
    """Wait until the metric's values have this sum on every worker."""

    async def is_so(client: Client) -> bool:
        return sum(await _figure(client, name)) == value

    await all_tell(process, is_so, name)


@dataclass(frozen=True)
class Stream:
    """A stream that has begun."""

    client: Client
    answer: Answer
    call: Call
    engine: ScriptedEngine

    def end(self) -> None:
        """The engine has sent all."""
        self.call.end(DONE)


async def streams(process: Process, engines: Sequence[ScriptedEngine], number: int) -> list[Stream]:
    """So many streams, each begun before the next."""
    found = []
    for _ in range(number):
        client = await process.client()
        await client.send(request(COMPLETIONS, STREAM))
        await eventually(lambda: any(engine.waiting for engine in engines))
        engine = next(engine for engine in engines if engine.waiting)
        call = await engine.call()
        call.stream(token("a"))
        answer = await client.begin()
        found.append(Stream(client, await answer.until(token("a")), call, engine))
    return found


def spread(found: Sequence[Stream]) -> list[int]:
    """How many streams each engine has."""
    return sorted(Counter(stream.engine.url for stream in found).values())
