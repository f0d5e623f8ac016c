from pathlib import Path

import orjson
import pytest

from benchmarks.comparison.scenarios import SCENARIOS
from benchmarks.distributions import Summary
from benchmarks.reporting import stored
from tests.benchmarks.filed import chunks, run

OLD, NEW = "2026-11-21T06:00:00+00:00", "2026-11-22T06:00:00+00:00"


def keep(place: Path, *runs: stored.Stored) -> None:
    for each in runs:
        (place / each.file).write_bytes(orjson.dumps(each.body))


def test_the_newest_run_of_a_scenario_counts(tmp_path: Path) -> None:
    keep(tmp_path, run("relay", {"ours": chunks(1)}, at=NEW), run("relay", {}, at=OLD))
    found = stored.newest(stored.load(tmp_path), "relay")
    assert found is not None
    assert found.body["at"] == NEW
    assert stored.newest(stored.load(tmp_path), "unary") is None


def test_a_pinned_run_counts_before_a_newer_one(tmp_path: Path) -> None:
    pinned = run("relay", {}, at=OLD)
    keep(tmp_path, pinned, run("relay", {}, at=NEW), run("unary", {}, at=NEW))
    (tmp_path / stored.PINNED).write_bytes(orjson.dumps({"relay": pinned.file}))
    runs = stored.load(tmp_path)
    assert [each.body["at"] for each in runs if each.scenario.name == "relay"] == [OLD]
    assert stored.newest(runs, "unary") is not None


def test_a_run_without_a_round_of_a_router_is_passed_over_where_it_is_needed() -> None:
    figures = {"ours": chunks(1), "nginx": chunks(1)}
    sound = run("relay", figures, at=OLD)
    runs = [
        run("relay", {"ours": chunks(1)}, at=NEW),
        run("relay", figures, at=NEW, void={"nginx": [0]}),
        sound,
    ]
    assert stored.newest(runs, "relay", ["ours", "nginx"]) is sound
    assert stored.newest(runs, "relay", ["ours"]) is runs[0]


def test_another_load_is_another_scenario() -> None:
    assert not run("relay", {}, clients=4).is_of_the_table
    assert not run("relay", {}, step_s=0.5).is_of_the_table
    assert run("relay", {}, window_s=9.0).is_of_the_table
    # As many as the machine allows.
    assert run("idle-streams", {}, clients=9800).is_of_the_table


def test_an_old_file_is_read_with_todays_defaults() -> None:
    old = run("relay", {})
    kept = {"name", "about", "clients", "tokens", "stream", "prompt_bytes"}
    old.body["scenario"] = {k: v for k, v in old.body["scenario"].items() if k in kept}
    old.body["scenario"]["forgotten"] = 1
    assert old.scenario == SCENARIOS["relay"]
    slow = run("slow-engine", {})
    slow.body["scenario"] = orjson.loads(orjson.dumps(slow.body["scenario"]))
    assert slow.scenario == SCENARIOS["slow-engine"]


def test_void_rounds_are_in_no_figure_and_ratios_are_paired() -> None:
    figures = {"ours": chunks(1, 90, 3), "nginx": chunks(2, 2, 2)}
    seen = run("relay", figures, void={"ours": [1]})
    assert seen.alone("ours", "cpu_us_per_chunk") == Summary(2.0, 1.0, 3.0, 2)
    assert seen.ratio("ours", "nginx", "cpu_us_per_chunk") == Summary(1.0, 0.5, 1.5, 2)
    assert seen.alone("ours", "stall_ms") is None
    assert seen.void == 1


def test_a_repeated_turn_counts_once() -> None:
    seen = run("relay", {"ours": chunks(9)}, void={"ours": [0]})
    seen.body["turns"] += run("relay", {"ours": chunks(4)}).body["turns"]
    assert seen.alone("ours", "cpu_us_per_chunk") == Summary(4.0, 4.0, 4.0, 1)


def test_latency_added_to_a_direct_connection() -> None:
    figures = {"ours": chunks(1, ttft_p50_ms=0.75), "direct": chunks(1, ttft_p50_ms=0.25)}
    added = run("added-ttft", figures).alone("ours", "added_ttft_p50_ms")
    assert added is not None
    assert added.median == pytest.approx(0.5)
