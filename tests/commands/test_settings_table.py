"""The table of settings, and its document."""

import subprocess
import sys

import pytest

from router.commands.settings_table import BEGIN, END, block, default_text, main, table, with_table
from router.settings import ENV_PREFIX, Settings, flag, is_advanced, is_reloadable


def test_every_setting_is_a_line_with_flag_variable_default_and_meaning():
    usual, _, advanced = table().partition("### Advanced")
    lines = [line for line in usual.splitlines() if line.startswith("| `")]
    lines += [line for line in advanced.splitlines() if line.startswith("| `")]
    names = sorted(Settings.model_fields, key=is_advanced)
    for line, name in zip(lines, names, strict=True):
        field = Settings.model_fields[name]
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        assert cells[0] == f"`{flag(name)}`"
        assert cells[1] == f"`{ENV_PREFIX}{name.upper()}`"
        assert cells[3] == ("yes" if is_reloadable(name) else "")
        assert cells[4] == field.description


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("prefill", ""),
        ("engine_api_key", ""),
        ("port", "8000"),
        ("shutdown_grace", "30"),
        ("max_body_bytes", "67108864"),
        ("log_format", "text"),
    ],
)
def test_a_default_is_written_as_a_user_would(name, text):
    assert default_text(Settings.model_fields[name]) == text


def test_only_the_text_between_the_markers_is_replaced():
    document = f"# a\n{BEGIN}\nold\n{END}\nb {table()}"
    written = with_table(document)
    assert written == f"# a\n{BEGIN}\n{table()}{END}\nb {table()}"
    assert block(written) == table()
    assert with_table(written) == written


@pytest.mark.parametrize("document", ["", BEGIN, f"{BEGIN}\nx", END, f"{END}\n{BEGIN}\n"])
def test_a_document_without_the_markers_is_left_alone(document, tmp_path, capsys):
    path = tmp_path / "README.md"
    path.write_text(document)
    assert main(["--write", str(path)]) == 2
    assert "has no lines" in capsys.readouterr().err
    assert path.read_text() == document


def test_write_puts_the_table_into_the_document_of_this_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "docs" / "settings.md"
    path.parent.mkdir()
    path.write_text(f"{BEGIN}\n{END}\n")
    assert main(["--write"]) == 0
    assert path.read_text() == f"{BEGIN}\n{table()}{END}\n"


def test_a_document_that_is_not_there_is_named(tmp_path, capsys):
    assert main(["--write", str(tmp_path / "no.md")]) == 2
    assert "no.md" in capsys.readouterr().err


def test_as_a_module_it_prints_the_table():
    command = [sys.executable, "-m", "router.commands.settings_table"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (table(), "")


def test_without_arguments_it_prints_the_table(capsys):
    assert main([]) == 0
    assert capsys.readouterr().out == table()
