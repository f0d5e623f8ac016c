import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

import orjson
import pytest
from rich.console import Console

from benchmarks.comparison import compare
from benchmarks.comparison.measure import Reading
from benchmarks.comparison.scenarios import SCENARIOS, Scenario
from benchmarks.distributions import Summary
from benchmarks.reporting import report, stored
from benchmarks.routers import peers
from benchmarks.routers.table import Router
from benchmarks.system.processes import StartError
from tests.benchmarks.readings import JOB, SCENARIO, job_reading, reading

EFFORT = compare.Effort(rounds=2, attempts=2, patience_s=0.0)
VOID = reading(engine_cpu_s=4.0)


def run(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    names: list[str],
    readings: Sequence[Reading | Exception],
    scenario: Scenario = SCENARIO,
) -> tuple[compare.Comparison, list[str]]:
    """Compare with given readings (an exception is raised) in place of processes."""
    taken: list[str] = []
    left = iter(readings)

    def turn(_scenario: Scenario, router: Router, _logs: Path) -> Reading:
        taken.append(router.name)
        given = next(left)
        if isinstance(given, Exception):
            raise given
        return given

    monkeypatch.setattr(compare, "turn", turn)
    result = compare.compare(scenario, names, EFFORT, tmp_path, lambda _: None)
    return result, taken


def test_routers_rotate_each_round(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result, taken = run(monkeypatch, tmp_path, ["direct", "ours"], [reading()] * 4)
    assert taken == ["direct", "ours", "ours", "direct"]
    assert result.sound
    assert result.base == "direct"
    assert dataclasses.replace(result, relative_to="ours").base == "ours"
    assert dataclasses.replace(result, relative_to="nginx").base == "direct"


def test_last_attempt_of_a_turn_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result, taken = run(monkeypatch, tmp_path, ["ours"], [VOID, reading(), reading()])
    assert len(taken) == 3
    assert len(result.turns) == 3
    assert [turn.void for turn in result.of("ours")] == [[], []]
    assert result.sound


def test_void_turns_are_in_no_median(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result, _ = run(monkeypatch, tmp_path, ["ours"], [VOID, VOID, reading()])
    summary = result.summaries("ours")["cpu_us_per_chunk"]
    assert summary is not None
    assert summary.rounds == 1
    assert not result.sound
    assert "VOID: engines used 1.00 of a core" in report.progress_line(result.turns[0])


def test_failed_start_is_void_with_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    failed = StartError("ended before it was ready", "bad flag")
    result, _ = run(monkeypatch, tmp_path, ["ours"], [failed] * 4)
    assert not result.sound
    text = shown(result)
    assert "ended before it was ready" in text
    assert "bad flag" in text


def test_failures_make_a_run_unsound(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    failing = reading(load={"failures": {"status 500": 2}})
    result, _ = run(monkeypatch, tmp_path, ["ours"], [failing, reading()])
    assert not result.sound
    assert report.failures(result) == {"ours": {"status 500": 2}}
    assert "ours failed: {'status 500': 2}" in shown(result)


def test_a_missing_peer_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PD_ROUTER_PEERS", str(tmp_path))
    result, taken = run(monkeypatch, tmp_path, ["direct", "vllm-router"], [reading()] * 2)
    assert taken == ["direct", "direct"]
    assert not result.sound
    assert peers.INSTALL_COMMAND in shown(result)
    alone, _ = run(monkeypatch, tmp_path, ["vllm-router"], [])
    assert peers.INSTALL_COMMAND in shown(alone)


def test_routers_without_two_legs_are_missing_in_two_leg_scenarios() -> None:
    assert "prefill and decode legs" in compare.missing(["nginx"], SCENARIOS["pd"])["nginx"]
    assert compare.missing(["ours"], SCENARIOS["pd"]) == {}


def test_peer_of_another_version_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PD_ROUTER_PEERS", str(tmp_path))
    peer = peers.VLLM_ROUTER
    peer.executable.parent.mkdir(parents=True)
    peer.executable.touch()
    packages = tmp_path / "vllm-router" / "lib" / "python3.11" / "site-packages"
    (packages / "vllm_router-0.0.1.dist-info").mkdir(parents=True)
    assert not peer.installed()
    (packages / f"vllm_router-{peer.version}.dist-info").mkdir()
    assert peer.installed()


def test_system_server_may_be_unpacked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PD_ROUTER_PEERS", str(tmp_path))
    server = peers.Packaged("no-such-server", "sbin/it", "get it")
    assert not server.installed()
    place = tmp_path / "no-such-server" / "sbin"
    place.mkdir(parents=True)
    (place / "it").touch()
    assert server.installed()
    assert server.executable == place / "it"


def shown(result: compare.Comparison) -> str:
    text = StringIO()
    report.show(result, Console(width=200, file=text))
    return text.getvalue()


@pytest.mark.parametrize(
    ("summary", "digits", "text"),
    [
        (None, 1, "–"),
        (Summary(13.14, 13.14, 13.14, 1), 1, "13.1"),
        (Summary(1234.0, 1200.0, 1300.0, 3), 0, "1,234 [1,200–1,300]"),
    ],
)
def test_a_cell(summary: Summary | None, digits: int, text: str) -> None:
    assert report.cell(summary, digits) == text


def test_tables_show_ratios_and_load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    dear = reading(router_cpu_s=0.03)
    readings = [reading(), dear, dear, reading()]
    result, _ = run(monkeypatch, tmp_path, ["ours", "direct"], readings)
    text = shown(result)
    assert "direct / ours" in text
    assert "relay: token streams; 10 clients x 4 tokens, 8 decode engines, 10 ms per step" in text
    [row] = [line for line in text.splitlines() if "CPU µs per chunk" in line]
    assert [cell.strip() for cell in row.split("│")[2:5]] == ["20.0", "30.0", "1.50"]


def test_unary_load_has_no_chunk_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result, _ = run(monkeypatch, tmp_path, ["ours"], [reading()] * 2)
    unary = dataclasses.replace(SCENARIO, stream=False)
    text = shown(dataclasses.replace(result, scenario=unary))
    assert "per chunk" not in text
    assert "TTFT is the time to the whole answer" in text


def test_a_job_shows_its_bound_and_the_load_per_engine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    late = job_reading(engines={"arrivals": [[10, 10], [5, 5]]})
    result, _ = run(monkeypatch, tmp_path, ["ours"], [job_reading(), late], JOB)
    assert result.carried("ours") == [15.0, 30.0]
    text = shown(result)
    assert "60 requests; bound 250 requests/s" in text
    assert "requests per engine" in text
    assert "end-to-end p99" in text
    assert "s from recovery" not in text


def test_the_file_has_all_data_for_a_reader(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    result, _ = run(monkeypatch, tmp_path, ["ours"], [VOID, reading(), reading()])
    at = datetime(2026, 11, 21, 6, 0, tzinfo=UTC)
    command = ["compare", "--router", "ours"]
    path = report.save(report.document(result, command, at), tmp_path / "results")
    assert path.name == "relay-2026-11-21T060000Z.json"
    body = orjson.loads(path.read_bytes())
    assert body["command"] == "python -m benchmarks compare --router ours"
    assert {"machine", "versions", "revision", "scenario"} <= set(body)
    assert [len(turn["void"]) for turn in body["turns"]] == [1, 0, 0]
    assert body["turns"][0]["figures"]["cpu_us_per_chunk"] == pytest.approx(20.0)
    assert "reading" not in body["turns"][0]
    kept = stored.load(path.parent)[0]
    assert kept.alone("ours", "cpu_us_per_chunk") == result.summaries("ours")["cpu_us_per_chunk"]


def test_a_stored_run_has_a_line_for_each_turn_and_rounded_figures() -> None:
    body = {"at": "now", "turns": [{"figures": {"ttft_p50_ms": 0.1234567}}, {"round": 1}]}
    written = report.to_json(body)
    assert len(written.splitlines()) == 7
    assert orjson.loads(written)["turns"] == [{"figures": {"ttft_p50_ms": 0.123457}}, {"round": 1}]


def test_long_job_is_shown_by_period(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sent = [{"requests": 21_300, "first_p50_s": 0.06, "first_p99_s": p99} for p99 in (0.1, 0.9, 9)]
    held = [{"fullest": 55.0, "emptiest": 54.0}, {"fullest": 64.0, "emptiest": None}]
    long = job_reading(load={"periods": sent}, engines={"periods": held})
    result, _ = run(monkeypatch, tmp_path, ["ours"], [long, job_reading()], JOB)
    table = report.periods_table(result)
    assert table is not None
    columns = [list(column.cells) for column in table.columns]
    assert columns[2:] == [
        ["0", "60"], ["355", "355"], ["60", "60"], ["100", "900"], ["55.0", "64.0"],
        ["54.0", report.NOTHING],
    ]  # fmt: skip
    assert "fullest and emptiest healthy engine" in shown(result)


def test_a_short_job_has_no_parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result, _ = run(monkeypatch, tmp_path, ["ours"], [job_reading()] * 2, JOB)
    assert report.periods_table(result) is None
