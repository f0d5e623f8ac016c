"""pd-router simulate: tables, plots and figures of policies on modelled engines."""

import builtins
import gzip
import json

import pytest

from router.cli import main
from router.simulator.virtual.scenarios.catalogue import SCENARIOS

SMALL = ("--engines", "4", "--streams", "16", "--requests", "64")


@pytest.fixture
def simulate(capsys):
    """Runs the command; returns the lines that it prints."""

    def run(*arguments: str) -> list[str]:
        assert main(["simulate", *SMALL, *arguments]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        return [line.rstrip() for line in out.splitlines()]

    return run


@pytest.fixture
def refused(capsys):
    """Runs the command with wrong usage; returns the error line."""

    def run(*arguments: str) -> str:
        assert main(["simulate", *arguments]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert len(err.splitlines()) == 1
        return str(err)

    return run


def test_a_row_for_each_scenario_and_policy(simulate):
    lines = simulate(
        *("--scenario", "healthy", "--scenario", "slow8"),
        *("--policy", "oracle", "--policy", "round_robin"),
    )
    rows = [tuple(line.split()[:2]) for line in lines[2:]]
    assert rows == [
        *(("healthy", "oracle"), ("healthy", "round_robin")),
        *(("slow8", "oracle"), ("slow8", "round_robin")),
    ]
    assert "TTFT p50" in lines[1]


def test_twice_the_load_is_answered_in_time_with_deadlines_only(simulate):
    lines = simulate(
        *("--scenario", "overload", "--engines", "2", "--policy", "shortest_expected_delay"),
        *("--slo-ttft", "2", "--requests", "4000"),
    )
    (off, late), (on, good) = (line.split()[-2:] for line in lines[2:])
    assert (off, on) == ("off", "on")
    assert int(good) > 2 * int(late)


def test_a_limit_of_ttft_is_above_0(refused):
    assert "--slo-ttft -1: must be above 0" in refused("--slo-ttft", "-1")


def test_every_scenario_by_default(simulate):
    lines = simulate("--policy", "least_loaded", "--requests", "2")
    assert [line.split()[0] for line in lines[2:]] == list(SCENARIOS)


def test_the_same_seed_prints_the_same(simulate):
    asked = ("--scenario", "heavy-tails", "--policy", "random")
    assert simulate(*asked, "--seed", "7") == simulate(*asked, "--seed", "7")
    assert simulate(*asked, "--seed", "7") != simulate(*asked, "--seed", "8")


def test_the_seed_draws_the_prompts(simulate, tmp_path):
    def prompt_tokens(seed: str) -> int:
        path = tmp_path / seed
        simulate(
            *("--scenario", "agents", "--policy", "random"), "--seed", seed, "--json", str(path)
        )
        (row,) = json.loads(path.read_text())
        return sum(engine["prefix_queries"] for engine in row["engines"])

    assert prompt_tokens("7") != prompt_tokens("8")


def test_figures_for_machines(simulate, tmp_path):
    path = tmp_path / "figures.json"
    simulate("--scenario", "replicas", "--policy", "least_loaded", "--json", str(path))
    (row,) = json.loads(path.read_text())
    assert (row["scenario"], row["policy"], row["requests"]) == ("replicas", "least_loaded", 64)
    assert row["leases_left"] == 0


def test_a_row_for_each_engine_if_wanted(simulate):
    asked = ("--scenario", "disaggregated", "--policy", "least_loaded", "--per-engine")
    rows = [line.split() for line in simulate(*asked)[-4:]]
    assert [row[:4] for row in rows] == [
        ["disaggregated", "least_loaded", str(place), role]
        for place, role in enumerate(("decode", "decode", "prefill", "prefill"))
    ]
    assert sum(int(row[4]) for row in rows[:2]) == 64


def test_thresholds_are_compared_with_each_other(simulate):
    asked = ("--scenario", "2p6d-30", "--policy", "least_loaded", "--max-itl-impact", "0.5")
    lines = simulate(*asked, "--routing-threshold", "0", "--routing-threshold", "auto")
    assert lines[1].endswith("threshold  remote  TTFT mean  ITL mean  ITL p99")
    rows = [line.replace(" %", "%").split() for line in lines[2:]]
    assert [row[:2] for row in rows] == [["2p6d-30", "least_loaded"]] * 2
    thresholds = [row[row.index("0") + 1 :][:2] for row in rows]
    assert thresholds[0] == ["0", "100%"]
    assert thresholds[1][0] == "auto"
    assert "threshold" not in simulate("--scenario", "healthy", "--policy", "least_loaded")[1]


def test_a_plot_for_each_scenario(simulate, tmp_path):
    pytest.importorskip("matplotlib")
    asked = ("--scenario", "healthy", "--policy", "least_loaded", "--plot", str(tmp_path / "p"))
    assert simulate(*asked)[-1] == str(tmp_path / "p" / "healthy.png")
    assert (tmp_path / "p" / "healthy.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_there_is_the_table_and_a_hint(simulate, tmp_path, monkeypatch):
    genuine = builtins.__import__

    def missing(name: str, *rest: object) -> object:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return genuine(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", missing)
    asked = ("--scenario", "healthy", "--policy", "least_loaded", "--plot", str(tmp_path / "p"))
    lines = simulate(*asked)
    assert lines[2].startswith("healthy")
    assert lines[-1] == "No plots: matplotlib is missing; pip install 'pd-router[bench]'."
    assert not (tmp_path / "p").exists()


def test_the_cost_of_a_choice(simulate, monkeypatch):
    monkeypatch.setattr(
        "router.commands.simulate.selection_microseconds",
        lambda engines, _policy, *, slow: engines + (0.5 if slow else 0.0),
    )
    lines = simulate("--selection-cost")
    assert [line.split() for line in lines[-3:]] == [
        ["8", "8.0", "8.5"],
        ["100", "100.0", "100.5"],
        ["1000", "1000.0", "1000.5"],
    ]


TRACE_WITH_EPOCH = b"""\
{"timestamp": 1795762800000, "input_length": 1300, "output_length": 5, "hash_ids": [0, 1, 2]}
{"timestamp": 1795762809000, "input_length": 1500, "output_length": 5, "hash_ids": [0, 1, 3]}
"""


TRACE = b"""\
{"timestamp": 0, "input_length": 1300, "output_length": 5, "hash_ids": [0, 1, 2]}
{"timestamp": 9000, "input_length": 1500, "output_length": 5, "hash_ids": [0, 1, 3]}
"""


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("two.jsonl", TRACE),
        ("two.jsonl.gz", gzip.compress(TRACE)),
        ("two.jsonl", TRACE_WITH_EPOCH),
    ],
    ids=["plain", "packed", "epoch"],
)
def test_a_trace_is_replayed_at_its_times_and_hits_are_shown(simulate, tmp_path, name, data):
    path = tmp_path / name
    path.write_bytes(data)
    figures = tmp_path / "figures.json"
    asked = ("--trace", str(path), "--time-scale", "2", "--engines", "1", "--json", str(figures))
    head, line = simulate(*asked, "--policy", "prefill_oracle")[1:]
    assert head.endswith("prefix hits  TTFT mean  max/mean served")
    assert line.split()[:2] == ["two", "prefill_oracle"]
    assert "36.6 %" in line  # 1024 of 2800
    (row,) = json.loads(figures.read_text())
    assert 18.0 < row["seconds"] < 20.0
    assert row["engines"][0]["prefix_hits"] == 1024


def test_scenarios_without_caches_have_no_hits_beside_those_that_do(simulate):
    asked = ("--scenario", "healthy", "--scenario", "agents", "--policy", "round_robin")
    lines = simulate(*asked)
    assert lines[2].split()[-4] == "-"
    assert "prefix hits" not in simulate("--scenario", "healthy", "--policy", "round_robin")[1]


def test_an_endless_simulation_is_reported(refused, monkeypatch):
    def endless(*_: object, **__: object) -> None:
        raise RuntimeError("it did not end")

    monkeypatch.setattr("router.commands.simulate.simulate", endless)
    assert refused("--scenario", "healthy") == "pd-router: healthy: it did not end; simulate less\n"


PACKED = gzip.compress(TRACE)


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("trace.jsonl", b"{}", "line 1: KeyError: 'input_length'"),
        ("trace.jsonl", b"nonsense", "line 1: JSONDecodeError: "),
        ("trace.jsonl", b"", "engines, replicas, streams and requests must be at least 1"),
        ("trace.gz", PACKED[:-20], "Compressed file ended"),
        ("trace.gz", PACKED[:10] + b"\xff" * 9, "Error -3 while decompressing"),
    ],
    ids=["other", "no JSON", "empty", "truncated", "broken"],
)
def test_a_trace_that_is_none_is_named(refused, tmp_path, name, data, says):
    path = tmp_path / name
    path.write_bytes(data)
    assert refused("--trace", str(path)).startswith(f"pd-router: --trace {path}: {says}")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--scenario", "sunny"), "--scenario sunny: no such scenario; there are healthy, "),
        (("--policy", "best"), "--policy best: no such policy; there are round_robin, "),
        (("--engines", "0"), "--engines 0: must be at least 1"),
        (("--replicas", "-1"), "--replicas -1: must be at least 1"),
        (("--requests", "many"), "--requests: invalid int value: 'many'"),
        (("--speed", "2"), "--speed: no such argument"),
        (("--trace", "/no/trace"), "--trace /no/trace: cannot be read: No such file or directory"),
        (("--trace", "x", "--time-scale", "0"), "--time-scale 0: must be above 0"),
        (("--routing-threshold", "-1"), "--routing-threshold -1: must be a number of tokens, or "),
        (("--max-itl-impact", "-1"), "--max-itl-impact -1: must not be below 0"),
        (
            ("--peers", "--scenario", "replicas", "--scenario", "workers-2"),
            "--peers: not with --scenario workers-2, which is one router's workers",
        ),
    ],
)
def test_wrong_use_is_named(refused, arguments, says):
    assert refused(*arguments).startswith(f"pd-router: {says}")


def test_a_file_that_cannot_be_written_is_named(capsys):
    asked = ["simulate", *SMALL, "--scenario", "healthy", "--policy", "oracle"]
    assert main([*asked, "--json", "/no/such/file"]) == 2
    assert capsys.readouterr().err == (
        "pd-router: --json /no/such/file: cannot be written: No such file or directory\n"
    )
