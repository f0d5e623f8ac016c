"""`pd-router config check`: all mistakes at once, without serving."""

import sys
from pathlib import Path

import pytest

from router.cli import main


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "router.yaml"


def test_a_good_file_is_called_good(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("decode: [http://d0:8000]\n")
    assert main(["config", "check", str(file)]) == 0
    assert capsys.readouterr() == (f"{file}: all is well\n", "")


def test_every_problem_is_a_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("decode: [d0]\nport: 99999\nquue_size: 1\nrouting_threshold: x\n")
    assert main(["config", "check", str(file)]) == 2
    out, err = capsys.readouterr()
    assert out == f"{file}: 4 problems\n"
    lines = err.splitlines()
    assert [line.split(": ")[1] for line in lines] == [
        *("quue_size", "port", "decode", "routing_threshold"),
    ]
    assert "did you mean queue_size?" in lines[0]


def test_one_problem_is_one(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("prefill: http://p0\n")
    assert main(["config", "check", str(file)]) == 2
    out, err = capsys.readouterr()
    assert out == f"{file}: 1 problem\n"
    assert err == "--decode: at least one decode engine is needed\n"


def test_flags_count_as_they_do_for_serve(file: Path) -> None:
    file.write_text("prefill: http://p0\n")
    assert main(["config", "check", str(file), "--decode", "http://d0"]) == 0


def test_missing_packages_are_problems(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "dns.asyncresolver", None)
    file.write_text("dns_decode: d0.example:8000\n")
    assert main(["config", "check", str(file)]) == 2
    assert "pip install 'pd-router[dns]'" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_a_problem(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "check", str(file)]) == 2
    assert "cannot read" in capsys.readouterr().err
