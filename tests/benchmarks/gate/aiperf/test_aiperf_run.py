"""`validate --generator aiperf`: refusals, and the real AIPerf if it is installed."""

import signal
from pathlib import Path

import pytest

from benchmarks.gate.aiperf import environment
from benchmarks.gate.judge import main_judge
from tests.benchmarks.gate.real import engines, gate, refused

GENERATOR = ("--generator", "aiperf")
ASKED = ("--throughput", ">= 1", "--ttft-p99", "<= 20000")


def installed() -> bool:
    try:
        environment.check()
    except environment.NotInstalled:
        return False
    return True


real = pytest.mark.skipif(not installed(), reason=f"needs {environment.INSTALL_COMMAND}")


@real
async def test_aiperf_drives_the_load_and_all_else_stays(tmp_path: Path) -> None:
    async with engines(2) as them:
        workers = [flag for url in them.urls for flag in ("--worker", url)]
        async with gate(them.urls[0], tmp_path, *GENERATOR, *ASKED, *workers) as it:
            assert await it.ended() == 0, it.text
    assert (it.kind, it.status) == ("healthy", "passed")
    found, theirs = it.result(), it.result("aiperf/profile_export_aiperf.json")
    ours = found["pd_router"]
    assert ours["generator"] == {"name": "aiperf", "version": environment.VERSION}
    assert ours["client"]["reached"] == 4
    assert ours["client"]["lag_p99_ms"] is None
    assert ours["warmup"] == {"requests": 4, "failed": 0}
    assert (ours["input"]["prompts"], ours["input"]["counted_by"]) == (20, "cl100k_base")
    assert found["request_count"]["avg"] == theirs["request_count"]["avg"] == 40
    assert found["output_sequence_length"]["avg"] == theirs["output_sequence_length"]["avg"] == 16
    for tag in ("time_to_first_token", "request_latency", "inter_chunk_latency"):
        assert found[tag]["p99"] == pytest.approx(theirs[tag]["p99"], abs=0.01)
    # AIPerf divides by the whole phase: some ms more than from first request to last chunk.
    tag = "output_token_throughput"
    assert found[tag]["avg"] == pytest.approx(theirs[tag]["avg"], rel=0.1)
    for name in ("report.html", "workers.png", "throughput.png"):
        assert (tmp_path / name).exists()
    assert main_judge([str(tmp_path)]) == 0


@real
async def test_ctrl_c_ends_aiperf_and_keeps_partial_results(tmp_path: Path) -> None:
    flags = ("--requests", "4000", "--no-sentinel", *GENERATOR, *ASKED)
    async with engines() as them, gate(them.urls[0], tmp_path, *flags) as it:
        await it.until("smoke: AIPerf sends")
        await it.until("smoke: ")  # a line about the measured phase
        it.process.send_signal(signal.SIGINT)
        assert await it.ended() == 3, it.text
    assert "interrupted" in it.text
    found = it.result()
    assert found["was_cancelled"] is True
    assert 0 < found["request_count"]["avg"] < 4000
    log = (tmp_path / "aiperf/aiperf.log").read_text()
    assert "cancelled early" in log


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (("--unique-prompts",), "--unique-prompts"),
        (("--processes", "1"), "--processes"),
        (("--api-key-env", "KEY"), "--api-key-env"),
    ],
)
def test_options_unsupported_by_aiperf_are_refused(
    tmp_path: Path,
    flags: tuple[str, ...],
    word: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KEY", "secret")
    refused(tmp_path, *GENERATOR, *flags)
    said = capsys.readouterr().err
    assert word in said
    assert "not with --generator aiperf" in said


def test_without_aiperf_its_install_command_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PD_ROUTER_AIPERF", str(tmp_path / "nowhere"))
    refused(tmp_path / "out", *GENERATOR)
    assert environment.INSTALL_COMMAND in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
