"""AIPerf's command line and its end, with a stand-in of the same behaviour."""

import asyncio
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.gate.aiperf import environment
from benchmarks.gate.aiperf.driver import AiperfFailed, Job, arguments, drive
from benchmarks.gate.profiles import PROFILES, Profile
from benchmarks.gate.traffic.load import Progress
from benchmarks.gate.traffic.measured import client_of

DATA = Path(__file__).parent / "data"
RECORDED = Profile(
    "recorded", concurrency_per_gpu=2, requests=6, warmup=1, input_tokens=8, output_tokens=4,
    prompts=3,
)  # fmt: skip
EXPORT = f'cp {DATA}/inputs.json {DATA}/profile_export.jsonl "$OUT"'
# Behind it, as AIPerf's services are: it must not outlive the gate.
SERVICE = 'sleep 60 & echo $! > "$OUT/service"'


def test_the_command_line_is_the_validators() -> None:
    job = Job(PROFILES["knee"], "http://router:8000", "Qwen/Qwen3-8B", gpus=8)
    assert arguments(job, Path("/out")) == [
        "profile", "--model", "Qwen/Qwen3-8B", "--url", "http://router:8000",
        "--endpoint-type", "chat", "--streaming",
        "--concurrency", "2048", "--request-count", "16384", "--warmup-request-count", "2048",
        "--prompt-input-tokens-mean", "128", "--prompt-input-tokens-stddev", "0",
        "--prompt-output-tokens-mean", "128", "--prompt-output-tokens-stddev", "0",
        "--num-dataset-entries", "100", "--random-seed", "100",
        "--extra-inputs", "temperature:0", "--output-artifact-dir", "/out",
        "--export-level", "records",
        # Beyond the validator's.
        "--tokenizer", "cl100k_base", "--use-server-token-count", "--ui", "none",
        "--request-timeout-seconds", "120",
    ]  # fmt: skip


def test_a_warm_up_of_zero_is_not_sent() -> None:
    job = Job(Profile("p", warmup=0, temperature=0.7), "http://h", "m")
    found = arguments(job, Path("out"))
    assert "--warmup-request-count" not in found
    assert "temperature:0.7" in found


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation whose AIPerf is a shell script's lines."""
    home = tmp_path / "home"
    monkeypatch.setenv("PD_ROUTER_AIPERF", str(home))
    packages = home / "aiperf/lib/python3/site-packages"
    for folder in (
        environment.executable().parent,
        environment._vocabulary().parent,
        packages / f"aiperf-{environment.VERSION}.dist-info",
    ):
        folder.mkdir(parents=True)
    environment._vocabulary().touch()
    behaves("exit 0")
    return tmp_path / "out"


def behaves(*lines: str) -> None:
    script = environment.executable()
    find = 'while [ "$1" != --output-artifact-dir ]; do shift; done; OUT=$2'
    script.write_text("\n".join(["#!/bin/sh", find, *lines, ""]))
    script.chmod(script.stat().st_mode | stat.S_IXUSR)


async def driven(out: Path, *, stop: bool = False):
    told: list[tuple[str, Progress]] = []
    stopped = asyncio.Event()

    def tell(phase: str, progress: Progress) -> None:
        told.append((phase, progress))
        if stop:
            stopped.set()

    job = Job(RECORDED, "http://h", "m")
    async with asyncio.timeout(60):
        return await drive(job, out, tell, stopped), told


async def test_an_export_becomes_a_measured_phase(place: Path) -> None:
    behaves(EXPORT)
    done, told = await driven(place)
    assert (done.warmup_requests, done.warmup_failed) == (1, 0)
    assert len(done.prompts.texts) == 3
    assert not done.offered.interrupted
    assert len(done.offered.seen) == 6
    # Of the refused one AIPerf says that it took no time.
    assert client_of(done.offered).reached == 2
    assert done.offered.started_at.isoformat().startswith("2026-11-21T12:41:07.61")
    assert done.offered.begin == min(each.sent for each in done.offered.seen)
    ended = {phase: progress.ended for phase, progress in told}
    assert ended == {"warm-up": 1, "measured": 6}


async def test_all_requests_failed_is_a_result(place: Path) -> None:
    behaves(EXPORT, "exit 1")
    done, _ = await driven(place)
    assert len(done.offered.seen) == 6


async def test_an_end_without_an_export_shows_the_end_of_the_log(place: Path) -> None:
    behaves('echo "no such model" >&2; exit 7')
    with pytest.raises(AiperfFailed, match=r"status 7 after 0 of 6 .*\nno such model"):
        await driven(place)


async def test_a_stop_like_ctrl_c_keeps_partial_results(place: Path) -> None:
    behaves(
        "trap 'exit 0' INT",
        f'cp {DATA}/inputs.json "$OUT"; head -n 4 {DATA}/profile_export.jsonl > "$OUT/part"',
        'printf \'{"cut\' >> "$OUT/part"; mv "$OUT/part" "$OUT/profile_export.jsonl"',
        "while :; do sleep 0.1; done",
    )
    done, _ = await driven(place, stop=True)
    assert done.offered.interrupted
    assert len(done.offered.seen) == 3


async def test_no_state_remains(place: Path) -> None:
    behaves(SERVICE, "trap '' INT", "while :; do sleep 0.1; done")
    run = asyncio.ensure_future(driven(place))
    await until(lambda: (place / "service").exists() and (place / "service").read_text() != "")
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    await gone(int((place / "service").read_text()))


async def test_services_end_with_it(place: Path) -> None:
    behaves(EXPORT, SERVICE)
    await driven(place)
    await gone(int((place / "service").read_text()))


async def gone(pid: int) -> None:
    await until(lambda: not running(pid))


async def until(so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not so():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def running(pid: int) -> bool:
    """A zombie is not: whoever inherited it may never ask."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


async def test_it_does_not_run_for_ever(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Job, "longest_s", 0.2)
    behaves("sleep 60")
    with pytest.raises(AiperfFailed, match="did not end within"):
        await driven(place)


async def test_where_it_is_not_installed_the_command_is_named(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PD_ROUTER_AIPERF", str(place / "elsewhere"))
    with pytest.raises(AiperfFailed, match="python -m benchmarks aiperf install"):
        await driven(place)


async def test_an_export_is_not_mixed_with_another(place: Path) -> None:
    behaves(EXPORT)
    await driven(place)
    with pytest.raises(AiperfFailed, match="another folder"):
        await driven(place)


def test_the_longest_run_is_every_answer_at_its_time_out() -> None:
    job = Job(Profile("p", concurrency_per_gpu=4, requests=40, warmup=4, timeout=10.0), "u", "m")
    assert job.longest_s == 180 + 11 * 10
