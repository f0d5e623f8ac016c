"""The real AIPerf as the load generator: the validator's command line, results in our format.

AIPerf warms up in the same process before it measures. It runs in its own process group, which
ends with the gate.
"""

import asyncio
import contextlib
import math
import os
import signal
import time
from array import array
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.gate.aiperf import environment
from benchmarks.gate.aiperf.records import PROMPTS, RECORDS, Record, prompts, records
from benchmarks.gate.aiperf.watch import OnProgress, Watch
from benchmarks.gate.analysis.records import Unreadable
from benchmarks.gate.inputs.prompts import Prompts
from benchmarks.gate.profiles import Profile
from benchmarks.gate.traffic.load import Outcome
from benchmarks.gate.traffic.measured import Offered
from benchmarks.gate.traffic.processes import GeneratorDied
from benchmarks.streaming.client import Seen

LOG = "aiperf.log"
# Lines of its log that are shown when AIPerf fails.
LAST_LINES = 12
# Eight processes import a hundred packages each: 5 s on two idle cores. Its export is as fast.
START_S = 180.0
# From SIGINT to the export of partial results: 1 s.
STOP_S = 15.0
POLL_S = 0.5


class AiperfFailed(GeneratorDied):
    """AIPerf has no usable result; the text has the remedy."""


@dataclass(frozen=True, slots=True)
class Job:
    """What AIPerf is to do. The profile's concurrency is `gpus` times that of one. Its `timeout` is
    kept to; a hung worker would otherwise hang AIPerf for six hours."""

    profile: Profile
    url: str
    model: str
    gpus: int = 1
    verify: bool = True

    @property
    def concurrency(self) -> int:
        """Requests in flight."""
        return self.profile.concurrency(self.gpus)

    @property
    def requests(self) -> int:
        """Requests of the measured phase."""
        return self.profile.request_count(self.gpus)

    @property
    def warmup(self) -> int:
        """Requests of the warm-up."""
        return self.profile.warmup_count(self.gpus)

    @property
    def longest_s(self) -> float:
        """More seconds than it can take: with every answer at its time-out, one after the other."""
        waves = sum(math.ceil(each / self.concurrency) for each in (self.requests, self.warmup))
        return START_S + waves * self.profile.timeout


@dataclass(frozen=True, slots=True)
class Driven:
    """A measured phase, the prompts that AIPerf made up, and what its warm-up came to."""

    offered: Offered
    prompts: Prompts
    warmup_requests: int
    warmup_failed: int


def arguments(job: Job, folder: Path) -> list[str]:
    """The validator's (reference 1.2), in its order, but `records` for `summary`: requests one by
    one are evidence. What follows is for use without a hub: a tokenizer that is not the model's own
    must not count its answers."""
    profile = job.profile
    warmup = ["--warmup-request-count", str(job.warmup)] if job.warmup else []  # it refuses 0
    return [
        *("profile", "--model", job.model, "--url", job.url),
        *("--endpoint-type", "chat", "--streaming"),
        *("--concurrency", str(job.concurrency), "--request-count", str(job.requests)),
        *warmup,
        *("--prompt-input-tokens-mean", str(profile.input_tokens)),
        *("--prompt-input-tokens-stddev", "0"),
        *("--prompt-output-tokens-mean", str(profile.output_tokens)),
        *("--prompt-output-tokens-stddev", "0"),
        *("--num-dataset-entries", str(profile.prompts), "--random-seed", str(profile.seed)),
        *("--extra-inputs", f"temperature:{profile.temperature:g}"),
        *("--output-artifact-dir", str(folder), "--export-level", "records"),
        *("--tokenizer", environment.TOKENIZER, "--use-server-token-count", "--ui", "none"),
        *("--request-timeout-seconds", f"{profile.timeout:g}"),
    ]


async def drive(job: Job, folder: Path, on_progress: OnProgress, stopped: asyncio.Event) -> Driven:
    """Let AIPerf warm up and measure; its export and its log (aiperf.log) go into `folder`.

    `on_progress` is called with the phase ("warm-up" or "measured") and its progress whenever
    AIPerf has written records. After `stopped` there is what there is. Raises AiperfFailed,
    OSError.
    """
    command = _command(job, folder)
    async with _running(command, folder / LOG, verify=job.verify) as process:
        watch = Watch(process.pid, folder / RECORDS, job.concurrency, job.requests, on_progress)
        code = await _ended(process, job.longest_s, watch, stopped)
    try:
        return _driven(job, folder, code, watch, stopped=stopped.is_set())
    except Unreadable as error:
        raise AiperfFailed(f"what AIPerf wrote: {error}") from None


def _command(job: Job, folder: Path) -> list[str]:
    """AIPerf's command; creates the export's directory. Raises AiperfFailed, OSError."""
    try:
        environment.check()
    except environment.NotInstalled as error:
        raise AiperfFailed(str(error)) from None
    if (folder / RECORDS).exists():
        raise AiperfFailed(f"{folder} holds records of requests already: name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    return [str(environment.executable()), *arguments(job, folder.absolute())]


@contextlib.asynccontextmanager
async def _running(
    command: Sequence[str], log: Path, *, verify: bool
) -> AsyncIterator[asyncio.subprocess.Process]:
    """In its own process group: we pass on Ctrl-C. All its processes end with the context."""
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            env=environment.variables(verify=verify),
            start_new_session=True,
        )
    try:
        yield process
    finally:
        # Even after its own end: its services are separate processes.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _ended(
    process: asyncio.subprocess.Process,
    longest: float,
    watch: Watch,
    stopped: asyncio.Event,
) -> int:
    """Wait for its exit status. Raises AiperfFailed if it takes too long."""
    deadline = time.monotonic() + longest
    waiting, stopping = (asyncio.ensure_future(each.wait()) for each in (process, stopped))
    awaited: set[asyncio.Future[Any]] = {waiting, stopping}
    try:
        while not waiting.done():
            await asyncio.wait(awaited, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
            watch.look()
            if stopping in awaited and stopping.done():
                awaited.discard(stopping)
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGINT)
                # It ignores signals while it starts; no results exist then.
                deadline = time.monotonic() + (STOP_S if watch.has_records else 0.0)
            if time.monotonic() > deadline:
                # Stopped by the user: only the records written so far are used.
                if stopped.is_set():
                    return -signal.SIGKILL
                raise AiperfFailed(f"AIPerf did not end within {longest:.0f} s and was killed")
        return waiting.result()
    finally:
        waiting.cancel()
        stopping.cancel()
        await asyncio.gather(waiting, stopping, return_exceptions=True)


def _driven(job: Job, folder: Path, code: int, watch: Watch, *, stopped: bool) -> Driven:
    """Raises AiperfFailed, Unreadable."""
    path = folder / RECORDS
    found = list(records(_lines(path))) if path.exists() else []
    hot = [each for each in found if not each.warmup]
    warm = [each.seen for each in found if each.warmup]
    # With every request failed it ends with 1, and that is a result.
    if len(hot) < job.requests and not stopped:
        raise AiperfFailed(_why(folder / LOG, code, len(hot), job.requests))
    offered = _offered(hot, watch, interrupted=len(hot) < job.requests)
    made = prompts(folder / PROMPTS, job.profile.input_tokens, environment.TOKENIZER)
    return Driven(offered, made, len(warm), sum(each.error is not None for each in warm))


def _lines(path: Path) -> list[bytes]:
    """The last one may have been cut by a stop."""
    return path.read_bytes().split(b"\n")[:-1]


def _why(log: Path, code: int, found: int, asked: int) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    last = "\n".join(lines[-LAST_LINES:])
    what = f"AIPerf ended with status {code} after {found} of {asked} requests"
    return f"{what}; {log} ends with\n{last}"


def _offered(hot: list[Record], watch: Watch, *, interrupted: bool) -> Offered:
    """Convert its times to those of time.monotonic."""
    now, ahead = time.monotonic(), time.time_ns() / 1e9 - time.monotonic()
    seen = [each.seen for each in hot]
    begin = min((each.sent for each in seen), default=now + ahead)
    for each in seen:
        _shift(each, ahead)
    end = max((each.ended or 0.0 for each in seen), default=now)
    cpu = watch.busiest(begin - ahead, end)
    started_at = datetime.fromtimestamp(begin, UTC)
    return Offered(begin - ahead, end, started_at, (Outcome(seen, cpu, array("d"), interrupted),))


def _shift(seen: Seen, ahead: float) -> None:
    seen.sent -= ahead
    for name in ("written", "first", "last", "ended"):
        if (at := getattr(seen, name)) is not None:
            setattr(seen, name, at - ahead)
