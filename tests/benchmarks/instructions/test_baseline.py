import io
from pathlib import Path

import orjson
import pytest
from rich.console import Console

from benchmarks.instructions import baseline
from benchmarks.instructions.baseline import Change
from benchmarks.instructions.command import compare, main, parser
from benchmarks.instructions.cost import Cost, Costs
from benchmarks.system import machine


def costs(unary: float = 1000, chunk: float = 100, calls: float = 8) -> Costs:
    return {
        "unary": Cost(unary, {"read": calls / 2, "write": calls / 2}),
        "chunk": Cost(chunk, {"write": 1.0}),
    }


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    path = tmp_path / "deep" / "baseline.json"
    baseline.write(path, baseline.kind("ours"), costs())
    return path


def compared(path: Path, now: Costs) -> tuple[int, str]:
    out = io.StringIO()
    status = compare(path, "ours", now, 0.03, Console(file=out, width=300))
    return status, out.getvalue()


def test_equal_figures_pass(stored: Path) -> None:
    status, text = compared(stored, costs())
    assert status == 0
    assert "no figure has grown by more than 3%" in text


def test_a_figure_that_grew_is_named_with_both_values(stored: Path) -> None:
    status, text = compared(stored, costs(chunk=104))
    assert status == 1
    assert "GREW ours, chunk: instructions 100 -> 104 (+4.0%): more than 3% over the base" in text
    assert "unary" not in text


def test_each_router_is_compared_with_its_own_figures(stored: Path) -> None:
    out = io.StringIO()
    assert compare(stored, "ours-sed", costs(unary=2000), 0.03, Console(file=out)) == 0
    assert "no figures for" in out.getvalue()


def test_growth_within_the_limit_passes(stored: Path) -> None:
    assert compared(stored, costs(unary=1029, chunk=102))[0] == 0


def test_system_calls_are_guarded_too(stored: Path) -> None:
    status, text = compared(stored, costs(calls=9))
    assert status == 1
    assert "GREW ours, unary: system calls 8 -> 9" in text


def test_the_reads_of_a_large_body_depend_on_the_machine(stored: Path) -> None:
    """How many there are is shown, and not compared."""
    baseline.write(stored, baseline.kind("ours"), {"large": Cost(1000, {"read": 4.0})})
    assert compared(stored, {"large": Cost(1000, {"read": 6.0})})[0] == 0
    assert compared(stored, {"large": Cost(1100, {"read": 4.0})})[0] == 1


def test_lower_costs_suggest_a_new_baseline(stored: Path) -> None:
    status, text = compared(stored, costs(unary=900))
    assert status == 0
    assert "--write-baseline" in text


def test_without_a_matching_baseline_it_passes_with_a_note(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    baseline.write(path, "another interpreter", costs(unary=1))
    status, text = compared(path, costs())
    assert status == 0
    assert f"no figures for {baseline.kind('ours')}" in text


def test_storing_one_kind_keeps_the_others(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    baseline.write(path, "one", costs(unary=1))
    baseline.write(path, "two", costs(unary=2))
    baseline.write(path, "one", costs(unary=3))
    one, two = baseline.read(path, "one"), baseline.read(path, "two")
    assert one is not None
    assert two is not None
    assert (one.figures["unary"]["instructions"], two.figures["unary"]["instructions"]) == (3, 2)


def test_storing_one_unit_keeps_the_others(stored: Path) -> None:
    baseline.write(stored, baseline.kind("ours"), {"unary": Cost(1200, None)})
    found = baseline.read(stored, baseline.kind("ours"))
    assert found is not None
    assert found.figures["unary"] == {"instructions": 1200}
    assert found.figures["chunk"] == {"instructions": 100, "system calls": 1.0}


def test_other_versions_are_reported(stored: Path) -> None:
    body = orjson.loads(stored.read_bytes())
    body[baseline.kind("ours")]["versions"]["uvloop"] = "0.1"
    stored.write_bytes(orjson.dumps(body))
    assert "uvloop 0.1 ->" in compared(stored, costs())[1]


def test_without_strace_only_instructions_are_compared(stored: Path) -> None:
    now = {"unary": Cost(1000, None), "chunk": Cost(100, None)}
    assert compared(stored, now)[0] == 0
    assert compared(stored, {"unary": Cost(2000, None)})[0] == 1


def test_a_figure_that_was_nothing_has_grown_when_it_is_something() -> None:
    assert Change("unary", "system calls", 0, 1).growth > 0.03
    assert Change("unary", "system calls", 0, 0).growth == 0


def test_a_system_call_more_is_growth_and_half_a_one_is_noise() -> None:
    assert Change("large", "system calls", 6.4, 7.4).has_grown(0.03)
    assert not Change("large", "system calls", 6.4, 7.0).has_grown(0.03)
    assert Change("large", "instructions", 6.4, 7.0).has_grown(0.03)
    assert not Change("chunk", "system calls", 100.0, 101.0).has_grown(0.03)


def test_a_baseline_kind_has_interpreter_machine_and_form() -> None:
    assert baseline.kind().count(",") == 3
    assert baseline.kind("ours") == f"{baseline.kind()}: ours"
    assert machine.form() in ("pure Python", "compiled")


@pytest.mark.parametrize(
    "wrong",
    [
        ["--write-baseline"],
        ["--router", "nginx", "--baseline", "b.json"],
        ["--router", "direct"],
        ["--router", "other"],
        ["--unit", "other"],
    ],
)
def test_bad_usage_ends_with_2(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(wrong)
    assert ended.value.code == 2
    assert "usage" in capsys.readouterr().err


def test_growth_of_three_percent_is_the_default() -> None:
    assert parser().parse_args([]).max_growth == 0.03


@pytest.mark.parametrize("program", ["valgrind", "gcc"])
def test_the_error_has_the_install_command(
    program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = "cc" if program == "gcc" else program
    monkeypatch.setattr("shutil.which", lambda name: None if name == absent else name)
    assert main(["--router", "ours"]) == 2
    assert f"apt-get install {program}" in capsys.readouterr().out
