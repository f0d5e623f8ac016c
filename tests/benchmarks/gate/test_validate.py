"""The real command against real processes: verdicts, what goes wrong meanwhile, and its end."""

import gzip
import os
import signal
from pathlib import Path

import orjson

from benchmarks.gate.judge import main_judge
from tests.benchmarks.gate.real import Gate, engines, gate, judged, router

ASKED = ("--throughput", ">= 1", "--ttft-p99", "<= 20000")
# Enough to outlast a test.
LONG = ("--requests", "400")
MEASURED = "smoke: 4"


async def test_a_sound_endpoint_passes_and_everything_is_written(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    async with engines(2, "--prompt-tokens-details") as them:
        workers = [flag for url in them.urls for flag in ("--worker", url)]
        flags = (*ASKED, *workers, "--slo", "ttft:20000", "--sentinel", "--requests", "40")
        async with gate(them.urls[0], out, *flags) as it:
            assert await it.ended() == 0, it.text
    assert "ready: 2 workers, from --worker" in it.text
    assert "counted by the server" in it.text
    assert "Goodput (ttft:20000 ms): 40 of 40 requests (100.0%)" in it.text
    assert "of prompt tokens were cached by the server" in it.text
    assert it.text.count("===AIPERF-RESULT===") == 2
    assert (it.kind, it.status) == ("healthy", "passed")
    names = {path.name for path in out.iterdir()}
    assert {"report.html", "workers.png", "run.json.gz", "profile_export.jsonl"} <= names
    found = it.result()
    assert found["request_count"]["avg"] == 40
    assert found["output_sequence_length"]["avg"] == 16
    assert found["pd_router"]["input"]["counted_by"] == "tokenize"
    assert found["pd_router"]["client"]["reached"] == 4
    assert main_judge([str(out)]) == 0


async def test_smoke_goes_on_for_two_seconds_however_fast_the_endpoint_is(tmp_path: Path) -> None:
    async with engines(1, "--step-ms", "0") as them:
        it, status = await judged(them.urls[0], tmp_path, *ASKED)
    assert status == 0, it.text
    assert "smoke: 40 requests or more, for 2 s at least, 4 at once" in it.text
    ends = [each["ended"] for each in orjson.loads(_run(it.out))["requests"]]
    assert len(ends) > 40
    assert max(ends) >= 2.0
    assert it.result()["pd_router"]["input"]["reuse"] == (len(ends) + 4) / 20


def _run(folder: Path) -> bytes:
    return gzip.decompress((folder / "run.json.gz").read_bytes())


async def test_too_little_throughput_fails(tmp_path: Path) -> None:
    async with engines() as them:
        it, status = await judged(them.urls[0], tmp_path, "--throughput", ">= 1e9")
    assert status == 1, it.text
    assert 'does not satisfy constraint ">= 1e9" (with 10% tolerance)' in it.text
    assert it.status == "failed"
    assert "no worker evidence" in it.text


async def test_no_constraints_mean_skipped(tmp_path: Path) -> None:
    async with engines() as them:
        it, status = await judged(them.urls[0], tmp_path)
    assert status == 2, it.text
    assert it.status == "skipped"
    assert "===AIPERF-RESULT===" not in it.text, "a pipe is no reason for JSON"
    assert "{" not in it.text


async def test_runs_are_k_of_n_and_prompts_may_be_unique(tmp_path: Path) -> None:
    async with engines() as them:
        flags = (*ASKED, "--runs", "2", "--require", "1", "--requests", "8", "--unique-prompts")
        async with gate(them.urls[0], tmp_path, *flags) as it:
            assert await it.ended() == 0, it.text
    assert "2 of 2 passed (1 required)" in it.text
    assert "24 prompts of 32 tokens" in it.text
    for name in ("run-1", "run-2"):
        assert (tmp_path / name / "run.json.gz").exists()


async def test_an_engine_that_answers_5xx(tmp_path: Path) -> None:
    async with engines() as them, gate(them.urls[0], tmp_path, *ASKED, *LONG) as it:
        await it.until(MEASURED)
        await them.go_wrong(status=503)
        assert await it.ended() == 1, it.text
    assert it.kind == "errors"
    assert "status 503" in it.text


async def test_an_engine_that_dies(tmp_path: Path) -> None:
    async with engines() as them, gate(them.urls[0], tmp_path, *ASKED, *LONG) as it:
        await it.until(MEASURED)
        them.process.kill()
        assert await it.ended() == 1, it.text
    assert it.kind == "errors"
    assert "cannot connect: ConnectionRefusedError" in it.text


async def test_an_engine_that_freezes(tmp_path: Path) -> None:
    flags = (*ASKED, "--requests", "12", "--output-tokens", "100", "--timeout", "1.5")
    async with (
        engines() as them,
        gate(them.urls[0], tmp_path, *flags, "--worker", them.urls[0]) as it,
    ):
        await it.until("smoke: 12")
        await them.go_wrong(stall=True)
        assert await it.ended() == 1, it.text
    assert it.kind == "errors"
    assert "timed out after 1.5 s" in it.text


async def test_a_hung_worker_behind_the_router_is_named(tmp_path: Path) -> None:
    # A client that is late by a twentieth of the limit makes the run void.
    flags = ("--gpus", "3", "--concurrency", "24", "--requests", "450", "--ttft-p99", "<= 1800")
    async with (
        engines(3, "--step-ms", "10") as them,
        router("round_robin", them.urls) as url,
    ):

        async def go_wrong(it: Gate) -> None:
            await it.until("smoke: 4")
            await them.go_wrong(1, stall=True, for_s=3.6)

        it, status = await judged(url, tmp_path, *flags, meanwhile=go_wrong)
    assert status == 1, it.text
    assert "ready: 3 workers, from the router's list" in it.text
    assert it.kind == "single-worker backup", it.text
    assert it.result()["pd_router"]["diagnosis"]["worker"] == them.urls[1]


async def test_an_endpoint_that_never_gets_ready(tmp_path: Path) -> None:
    flags = (*ASKED, "--ready-window", "0.5", "--ready-interval", "0.1")
    async with gate("http://127.0.0.1:9", tmp_path, *flags) as it:
        assert await it.ended() == 3, it.text
    assert "timed out waiting for inference endpoint to serve requests" in it.text
    assert "cannot connect" in it.text
    assert it.status == "other"


async def test_an_endpoint_that_accepts_and_never_answers(tmp_path: Path) -> None:
    flags = (*ASKED, "--ready-window", "0.6", "--ready-interval", "0.1", "--ready-timeout", "0.2")
    async with (
        engines(1, "--faults", '{"hang":true}') as them,
        gate(them.urls[0], tmp_path, *flags) as it,
    ):
        assert await it.ended() == 3, it.text
    assert "no answer within 0.2 s" in it.text


async def test_a_worker_that_is_missing_is_no_number(tmp_path: Path) -> None:
    # Long enough for the endpoint itself to answer on a busy machine.
    flags = (*ASKED, "--ready-window", "4", "--ready-interval", "0.5")
    async with engines() as them:
        workers = ("--worker", them.urls[0], "--worker", "http://127.0.0.1:9")
        async with gate(them.urls[0], tmp_path, *flags, *workers) as it:
            assert await it.ended() == 3, it.text
    assert "under-provisioned after 4 s: 1 of 2 workers are usable" in it.text
    (test,) = it.result("ctrf.json")["results"]["tests"]
    assert test["extra"] == {"diagnosis": "under-provisioned"}


async def test_ctrl_c_writes_partial_results(tmp_path: Path) -> None:
    async with (
        engines(1, "--step-ms", "50") as them,
        gate(them.urls[0], tmp_path, *ASKED, *LONG) as it,
    ):
        await it.until(MEASURED)
        it.process.send_signal(signal.SIGINT)
        assert await it.ended() == 3, it.text
    assert "stopping: what there is will be written" in it.text
    assert "error: interrupted: what there is of smoke was written" in it.text
    assert "\nvoid: interrupted: what there is of smoke was written" in it.text
    run = orjson.loads(gzip.decompress((tmp_path / "run.json.gz").read_bytes()))
    assert run["interrupted"]
    assert it.status == "other"
    assert (tmp_path / "report.html").exists()


async def test_a_signal_before_the_load_ends_at_once(tmp_path: Path) -> None:
    async with gate("http://127.0.0.1:9", tmp_path, *ASKED) as it:
        await it.until("not ready")
        it.process.send_signal(signal.SIGTERM)
        assert await it.ended() == 3, it.text
    assert "nothing was measured" in it.text


def generator_of(pid: int) -> int:
    """The load generator among the children of a process."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    (found,) = (
        int(child)
        for child in children
        if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()
    )
    return found


async def test_a_dead_generator_process_is_reported(tmp_path: Path) -> None:
    async with (
        engines(1, "--step-ms", "50") as them,
        gate(them.urls[0], tmp_path, *ASKED, *LONG) as it,
    ):
        await it.until(MEASURED)
        os.kill(generator_of(it.process.pid), signal.SIGKILL)
        assert await it.ended() == 3, it.text
    assert "error: load generator process 0 ended unexpectedly" in it.text


def all_bytes(folder: Path) -> bytes:
    """Of all files, unpacked."""
    found = [path.read_bytes() for path in folder.iterdir()]
    return b"".join(gzip.decompress(e) if e.startswith(b"\x1f\x8b") else e for e in found)


async def test_the_key_is_sent_and_never_shown(tmp_path: Path) -> None:
    async with engines(1, "--api-key", "s3cr3t") as them:
        flags = (*ASKED, "--requests", "4", "--api-key-env", "THE_KEY")
        async with gate(them.urls[0], tmp_path, *flags, THE_KEY="s3cr3t") as it:
            assert await it.ended() == 0, it.text
    assert "s3cr3t" not in it.text
    assert b"s3cr3t" not in all_bytes(tmp_path)
