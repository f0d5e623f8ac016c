"""One load through one kind of router, before simulated engines."""

import asyncio
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.distributions import percentile
from benchmarks.prefix.clients import Clients, Outcome
from benchmarks.prefix.loads import Load
from benchmarks.routers.fleet import Fleet
from benchmarks.routers.siblings import siblings
from benchmarks.routers.table import Router
from benchmarks.system import procfs
from benchmarks.system.ports import free_port
from benchmarks.system.processes import Process

ENGINES_PER_PROCESS = 4
READY_S = 60.0
LONGEST = 131_072
"""Tokens of prompt and answer, as in Mooncake's conversations."""

COUNTER = re.compile(
    r"^vllm:(prefix_cache_queries|prefix_cache_hits|request_success)_total\{[^\n]*\} (\S+)$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Result:
    """One run. Seconds; percentiles are of the requests that went well."""

    load: str
    router: str
    routers: int
    requests: int
    failed: int
    hit_rate: float
    """Of prompt tokens, as the engines count them."""
    ttft_mean: float
    ttft_p50: float
    ttft_p99: float
    e2e_mean: float
    requests_per_second: float
    spread: float
    """The most requests of an engine over their mean."""
    engines_cpu: float
    """The busiest process of engines, share of a core: near 1 it was the limit."""

    def as_dict(self) -> dict[str, Any]:
        """For a file."""
        return asdict(self)


@contextmanager
def engines(load: Load, count: int) -> Iterator[tuple[list[str], list[int]]]:
    """Simulated engines as the load wants them: their URLs, and the processes."""
    model = load.engine
    options: dict[str, Any] = {
        "--max-num-seqs": model["max_num_seqs"],
        "--max-num-batched-tokens": model["max_num_batched_tokens"],
        "--step-ms": 1000 * model["step_seconds"],
        "--prefill-tokens-per-second": model["prefill_tokens_per_second"],
        "--block-size": min(BLOCK_SIZE, model["block_size"]),
        "--total-blocks": model["kv_tokens"] // min(BLOCK_SIZE, model["block_size"]),
        "--max-model-len": min(LONGEST, model["kv_tokens"]),
        "--eos-one-in": 0,
        "--request-log": 0,
    }
    command = [sys.executable, "-m", "router.simulator", "--kv-events", "--prompt-tokens-details"]
    command += [str(word) for option in options.items() for word in option]
    urls: list[str] = []
    with ExitStack() as stack:
        running = []
        for first in range(0, count, ENGINES_PER_PROCESS):
            number = min(ENGINES_PER_PROCESS, count - first)
            process = stack.enter_context(
                subprocess.Popen(
                    [*command, "--count", str(number)], stdout=subprocess.PIPE, text=True
                )
            )
            stack.callback(process.kill)
            running.append((process, number))
        for process, number in running:
            assert process.stdout is not None
            urls += [process.stdout.readline().split()[1] for _ in range(number)]
        yield urls, [process.pid for process, _ in running]


BLOCK_SIZE = 16
"""vLLM's, also for loads that are given in larger blocks."""


def measure(
    load: Load, router: Router, routers: int, count: int, logs: Path, *, told: bool = True
) -> Result:
    """Start everything, offer the load, end everything. `told`: several routers of
    ours report their requests and prompts to each other."""
    if router.command is None:
        raise ValueError(f"{router.name} is no router")
    with ExitStack() as stack:
        urls, pids = stack.enter_context(engines(load, count))
        bases = []
        is_told = told and router.name.startswith("ours")
        for number, flags in enumerate(siblings(routers) if is_told else [()] * routers):
            port = free_port()
            process = stack.enter_context(
                Process(
                    [*router.command(Fleet(urls), port, logs), *flags],
                    logs / f"{router.name}-{number}.log",
                )
            )
            process.wait_ready(f"http://127.0.0.1:{port}{router.ready_path}", READY_S)
            bases.append(f"http://127.0.0.1:{port}")
        before = [procfs.cpu_s(pid) for pid in pids]
        clients = Clients(load, bases, wants_ids=router.name.endswith("-events"))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            outcome = runner.run(clients.run())
        used = max(procfs.cpu_s(pid) - then for pid, then in zip(pids, before, strict=True))
        counts = [_counts(url) for url in urls]
    return _result(load, router.name, routers, outcome, counts, used / outcome.seconds)


def _counts(url: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        found: dict[str, float] = {}
        for name, value in COUNTER.findall(answer.read().decode()):
            found[name] = found.get(name, 0.0) + float(value)
        return found


def _result(
    load: Load,
    name: str,
    routers: int,
    outcome: Outcome,
    counts: Sequence[dict[str, float]],
    cpu: float,
) -> Result:
    served = [each["request_success"] for each in counts]
    total = {key: sum(each[key] for each in counts) for key in counts[0]}
    good = len(outcome.first)
    return Result(
        load.name,
        name,
        routers,
        load.requests,
        outcome.failed,
        total["prefix_cache_hits"] / max(1.0, total["prefix_cache_queries"]),
        sum(outcome.first) / max(1, good),
        percentile(outcome.first, 50) or 0.0,
        percentile(outcome.first, 99) or 0.0,
        sum(outcome.whole) / max(1, good),
        good / outcome.seconds,
        max(served) * len(served) / max(1.0, sum(served)),
        cpu,
    )
