from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks.gate.analysis.slo import Slo
from benchmarks.gate.options import Plan, read, usual_processes
from benchmarks.gate.output.results import Baseline

AT = datetime(2026, 11, 21, 10, 0, 0, tzinfo=UTC)
NEEDED = ["--url", "http://r:8000/v1", "--model", "Qwen/Qwen3-8B"]


def plan(*flags: str) -> Plan:
    return read([*NEEDED, *flags], AT)


def test_the_defaults_are_the_validators() -> None:
    found = plan("--gpus", "8")
    assert (found.concurrency, found.requests, found.warmup) == (2048, 16_384, 2048)
    profile = found.profile
    assert (profile.input_tokens, profile.output_tokens, profile.seed) == (128, 128, 100)
    assert (found.prompts, profile.temperature) == (100, 0.0)
    assert (found.readiness.tries, found.readiness.between, found.readiness.window) == (
        120,
        10,
        300,
    )
    assert found.address.url == "http://r:8000"
    assert found.constraints.empty
    assert found.out == Path("gate-results/2026-11-21T100000Z-knee")


def test_one_gpu_still_sends_a_thousand_requests() -> None:
    found = plan("--gpus", "1", "--profile", "sub-knee")
    assert (found.concurrency, found.requests, found.warmup) == (128, 1024, 128)
    assert plan("--gpus", "1", "--concurrency", "4").requests == 1000


def test_a_platform_sets_gpus_and_thresholds() -> None:
    found = plan("--platform", "gb200")
    assert (found.gpus, found.gpus_total) == (4, 4)
    assert (found.constraints.throughput, found.constraints.ttft_p99) == (">= 50000", "<= 2000")
    half = plan("--platform", "gb200", "--gpus", "2", "--ttft-p99", "<= 1000")
    assert (half.gpus, half.gpus_total, half.constraints.ttft_p99) == (2, 4, "<= 1000")


def test_the_profile_is_overridden_number_by_number() -> None:
    found = plan(
        *("--gpus", "2", "--profile", "smoke", "--concurrency", "6", "--requests", "30"),
        *("--warmup", "0", "--prompt-tokens", "9", "--output-tokens", "7", "--prompts", "5"),
        *("--seed", "1", "--timeout", "2.5", "--slo", "ttft:5", "--slo", "itl:6"),
    )
    profile = found.profile
    assert (found.concurrency, found.requests, found.warmup, found.prompts) == (6, 30, 0, 5)
    assert (profile.input_tokens, profile.output_tokens) == (9, 7)
    assert (profile.seed, profile.timeout) == (1, 2.5)
    assert found.slos == (Slo("ttft", 5.0), Slo("itl", 6.0))
    assert found.sample_s == 0.5


def test_unique_prompts_are_one_for_each_request_of_each_run() -> None:
    found = plan("--gpus", "1", "--profile", "smoke", "--unique-prompts", "--runs", "3")
    assert found.prompts == 3 * (40 + 4)
    assert found.phases(0)[1].min_seconds == 0, "there are no more prompts"


SMOKE = ("--gpus", "1", "--profile", "smoke")


@pytest.mark.parametrize("load", [("--rate", "9"), ("--duration", "6", "--requests", "30")])
def test_unique_prompts_are_enough_for_other_loads_too(load: tuple[str, ...]) -> None:
    found = plan(*SMOKE, "--unique-prompts", "--runs", "2", *load)
    assert found.offer is not None
    _, last = found.phases(1)
    assert last.offset + last.requests == len(found.offer.template.dataset.conversations)


def test_smoke_lasts_seconds_by_default() -> None:
    warm, hot = plan("--gpus", "1", "--profile", "smoke").phases(0)
    assert (warm.min_seconds, hot.min_seconds) == (0, 2)
    _, hot = plan("--gpus", "1", "--profile", "smoke", "--requests", "40").phases(0)
    assert hot.min_seconds == 0


def test_processes_follow_streams_and_cores() -> None:
    assert usual_processes(4) == usual_processes(256) == 1
    assert 1 <= usual_processes(2048) <= 8


def test_at_most_one_process_per_request_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(4))
    assert plan("--gpus", "4", "--rate", "5").processes == 4
    assert plan("--gpus", "4", "--rate", "5", "--max-in-flight", "1").processes == 1


WRONG = [
    (["--gpus", "1", "--rate", "5", "--generator", "aiperf"], "plain closed loop: not with"),
    ([], "--gpus"),
    (["--gpus", "0"], "--gpus"),
    (["--gpus", "1", "--throughput", "> 5"], 'must start with ">="'),
    (["--gpus", "1", "--ttft-p99", "2000"], 'must start with "<="'),
    (["--gpus", "1", "--max-errors", "some"], "max errors"),
    (["--gpus", "1", "--profile", "other"], "other"),
    (["--gpus", "1", "--platform", "tpu"], "--platform"),
    (["--gpus", "1", "--slo", "tpot:5"], "tpot:5"),
    (["--gpus", "1", "--warmup", "-1"], "warmup"),
    (["--gpus", "1", "--timeout", "0"], "timeout"),
    (["--gpus", "1", "--timeout", "nan"], "timeout"),
    (["--gpus", "1", "--runs", "2", "--require", "3"], "--require"),
    (["--gpus", "1", "--prompt-tokens", "1"], "--prompts"),
    (["--gpus", "1", "--processes", "999"], "--processes"),
    (["--gpus", "1", "--unique-prompts", "--duration", "6"], "--requests"),
    (
        ["--gpus", "1", "--rate", "5", "--max-in-flight", "2", "--processes", "3"],
        "more than the 2 of --max-in-flight",
    ),
    (["--gpus", "1", "--worker", "w:1"], "w:1"),
    (["--gpus", "1", "--baseline", "/nowhere"], "/nowhere"),
    (["--gpus", "1", "--ready-window", "0"], "--ready-window"),
    (["--gpus", "1", "--api-key-env", "PD_NO_SUCH_KEY"], "PD_NO_SUCH_KEY"),
    (["--gpus", "1", "--api-key-file", "/nowhere"], "/nowhere"),
    (["--gpus", "1", "--api-key-file", "/nowhere", "--api-key-env", "A"], "one of them"),
    (["--gpus", "1", "--out", "/dev/null"], "--out"),
    (["--gpus", "1", "--url", "r:8000"], "r:8000"),
    (["--gpus", "1", "--model", "a b"], "a b"),
]


@pytest.mark.parametrize(("flags", "words"), WRONG)
def test_bad_values_end_with_3_before_any_traffic(
    flags: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        plan(*flags)
    assert ended.value.code == 3
    assert words in capsys.readouterr().err


def test_results_are_never_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "profile_export_aiperf.json").touch()
    with pytest.raises(SystemExit):
        plan("--gpus", "1", "--out", str(tmp_path))
    assert "holds results already" in capsys.readouterr().err


def test_a_key_comes_from_the_environment_or_a_file_and_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("THE_KEY", "s3cr3t")
    found = plan("--gpus", "1", "--api-key-env", "THE_KEY")
    assert found.key == "s3cr3t"
    assert "s3cr3t" not in repr(found)
    path = tmp_path / "key"
    path.write_text("s3cr3t\n")
    assert plan("--gpus", "1", "--api-key-file", str(path)).key == "s3cr3t"
    path.write_text("s3cr3t\r\nHost: other")
    with pytest.raises(SystemExit):
        plan("--gpus", "1", "--api-key-file", str(path))
    assert "s3cr3t" not in capsys.readouterr().err


def test_a_baseline_of_another_number_of_gpus_is_refused_before_any_traffic(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "baseline.json"
    file.write_bytes(Baseline((108_790.0,), 8).to_json())
    assert plan("--gpus", "8", "--baseline", str(file)).constraints.baseline == 108_790.0
    for gpus in ("4", "16"):
        with pytest.raises(SystemExit) as ended:
            plan("--gpus", gpus, "--baseline", str(file))
        assert ended.value.code == 3
        assert f"measured with 8 GPUs, {gpus} are benchmarked" in capsys.readouterr().err
