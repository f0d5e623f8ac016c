from pathlib import Path

import orjson
import pytest

from benchmarks.__main__ import main, parser, scenario_of
from benchmarks.routers import ROUTERS, Fleet
from benchmarks.scenarios import SCENARIOS


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
    ],
)
def test_bad_usage_ends_with_2(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["compare", *wrong])
    assert ended.value.code == 2
    assert wrong[0] in capsys.readouterr().err


def test_every_router_is_given_every_engine() -> None:
    fleet = Fleet(["http://127.0.0.1:1", "http://127.0.0.1:2"], ["http://127.0.0.1:3"])
    for router in ROUTERS.values():
        if router.command is not None:
            command = router.command(fleet, 8000)
            assert {*fleet.decode, *fleet.prefill, "8000", "127.0.0.1"} <= set(command)


def test_a_tiny_run_without_a_router(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Real processes, no judgement on speed: a busy machine may void the turn, not break it."""
    small = ["--streams", "4", "--tokens", "4", "--rounds", "1", "--attempts", "1"]
    short = ["--window", "1", "--patience", "0", "--results", str(tmp_path)]
    assert main(["compare", "--router", "direct", *small, *short]) in (0, 1)
    assert "relay: token streams; 4 clients x 4 tokens" in capfd.readouterr().out
    [file] = tmp_path.iterdir()
    [turn] = orjson.loads(file.read_bytes())["turns"]
    load = turn["reading"]["load"]
    assert load["failures"] == {}
    assert load["requests"] > 0
    assert load["events"] >= load["requests"]
    assert turn["reading"]["router_cpu_s"] is None
