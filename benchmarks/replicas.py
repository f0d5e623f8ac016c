"""`python -m benchmarks.replicas [REPLICAS]`: how even the load of 8 simulated engines is behind
one router, behind several that know nothing of each other, and behind several that tell each other
(`--peers`).

Requests come at random moments, at 85 % of what the engines serve side by side, to each router in
turn. Ten times a second the engines' own gauges are read: how many requests each has.
"""

import asyncio
import contextlib
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean, pstdev

from benchmarks.overload.processes import free_port, process, ready

ENGINES = 8
SLOTS = 8
TOKENS = 60
STEP_MS = 25
SHARE = 0.85
SECONDS = 30.0
WARM_SECONDS = 3.0
"""At the start, which do not count."""

LOOK_SECONDS = 0.1
SEED = 1

LOAD = re.compile(r"^vllm:num_requests_(?:running|waiting)\{[^}]*\} (\S+)", re.MULTILINE)
BODY = b'{"model":"sim","prompt":"Hello","max_tokens":%d,"ignore_eos":true,"stream":true}' % TOKENS


@dataclass(frozen=True, slots=True)
class Evenness:
    """Of the engines' requests, over time."""

    spread: float
    """Mean of the fullest engine's requests less the emptiest one's."""
    deviation: float
    """Mean of the standard deviation over the mean."""
    waiting: float
    """Share of moments in which an engine had more requests than slots while another had free
    ones."""
    first_p99: float
    """Seconds to the first token, 99th percentile."""


async def _get(port: int) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    text = await reader.read(-1)
    writer.close()
    return text.decode()


async def _ask(port: int, first_tokens: list[float]) -> None:
    began = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
    writer.write(head + b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(BODY))
    writer.write(BODY)
    await reader.readuntil(b"data: ")
    first_tokens.append(time.monotonic() - began)
    rest = await reader.read(-1)
    if b"[DONE]" not in rest:
        raise RuntimeError(f"an answer was not whole: {rest[-200:]!r}")
    writer.close()


async def _look(engines: list[int], looks: list[list[int]]) -> None:
    while True:
        texts = await asyncio.gather(*map(_get, engines))
        looks.append([round(sum(map(float, LOAD.findall(text)))) for text in texts])
        await asyncio.sleep(LOOK_SECONDS)


async def _load(routers: list[int], engines: list[int]) -> Evenness:
    chance = random.Random(SEED)
    rate = SHARE * ENGINES * SLOTS / (TOKENS * STEP_MS / 1000)
    first_tokens: list[float] = []
    looks: list[list[int]] = []
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        looking = group.create_task(_look(engines, looks))
        asking = []
        due = number = 0.0
        while due < SECONDS:
            await asyncio.sleep(max(0.0, began + due - time.monotonic()))
            if due < WARM_SECONDS:
                first_tokens.clear()
                looks.clear()
            port = routers[int(number) % len(routers)]
            asking.append(group.create_task(_ask(port, first_tokens)))
            number += 1
            due += chance.expovariate(rate)
        looking.cancel()
        await asyncio.gather(*asking)
    return _evenness(looks, sorted(first_tokens))


def _evenness(looks: list[list[int]], first_tokens: list[float]) -> Evenness:
    return Evenness(
        fmean(max(look) - min(look) for look in looks),
        fmean(pstdev(look) / fmean(look) for look in looks if any(look)),
        fmean(max(look) > SLOTS > min(look) for look in looks),
        first_tokens[len(first_tokens) * 99 // 100],
    )


@contextlib.contextmanager
def _engines() -> Iterator[list[int]]:
    command = [sys.executable, "-m", "router.simulator", "--role", "decode"]
    command += ["--count", str(ENGINES), "--step-ms", str(STEP_MS), "--max-num-seqs", str(SLOTS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        lines = [running.stdout.readline() for _ in range(ENGINES)]
        try:
            yield [int(line.split()[1].rpartition(":")[2]) for line in lines]
        finally:
            running.kill()


def measure(replicas: int, *, told: bool) -> Evenness:
    """One run."""
    with contextlib.ExitStack() as stack:
        engines = stack.enter_context(_engines())
        ports = [free_port() for _ in range(replicas)]
        admin = [free_port() for _ in range(replicas)]
        common = [word for port in engines for word in ("--decode", f"http://127.0.0.1:{port}")]
        if told:
            common += ["--peers", ",".join(f"http://127.0.0.1:{port}" for port in admin)]
        for port, admin_port in zip(ports, admin, strict=True):
            own = ("--host", "127.0.0.1", "--port", str(port), "--admin-port", str(admin_port))
            stack.enter_context(
                process("router.cli", "serve", *own, *common, "--log-level", "error")
            )
        for port in ports:
            ready(f"http://127.0.0.1:{port}/ready")
        return asyncio.run(_load(ports, engines))


def main() -> int:
    """The command line."""
    replicas = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    print(f"{ENGINES} engines with {SLOTS} slots each, {SHARE:.0%} load, {SECONDS:g} s")
    print(f"{'routers':<24}{'spread':>8}{'deviation':>11}{'wait beside free':>18}{'TTFT p99':>11}")
    for name, number, told in (
        ("1", 1, False),
        (f"{replicas}, each alone", replicas, False),
        (f"{replicas} with --peers", replicas, True),
    ):
        found = measure(number, told=told)
        print(
            f"{name:<24}{found.spread:>8.1f}{found.deviation:>11.0%}{found.waiting:>18.0%}"
            f"{found.first_p99 * 1000:>8.0f} ms"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
