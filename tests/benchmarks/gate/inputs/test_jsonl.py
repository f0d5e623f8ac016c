import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gate.inputs.datasets import InvalidDataset
from benchmarks.gate.inputs.jsonl import Malformed, Record, read, records, whole

leaves = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text()
values = st.recursive(
    leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)


@given(st.lists(st.dictionaries(st.text(), values, max_size=3), max_size=5), st.booleans())
def test_lines_come_back(rows: list[Any], ascii_only: bool) -> None:
    text = "\n\n".join(json.dumps(row, ensure_ascii=ascii_only) for row in rows)
    assert list(records(text)) == [(2 * number + 1, row) for number, row in enumerate(rows)]


@given(st.lists(values), st.sampled_from([None, 0, 2]))
def test_an_array_comes_back(rows: list[Any], indent: int | None) -> None:
    text = "\r\n " + json.dumps(rows, indent=indent) + "\n"
    found = list(records(text))
    assert [row for _, row in found] == rows
    lines = [line for line, _ in found]
    assert lines == sorted(lines)
    if indent == 0 and all(isinstance(row, str) for row in rows):
        assert lines == list(range(3, 3 + len(rows)))


@given(st.text() | st.text('[]{},:" \n1ae\\u').map(lambda text: f"[{text}"))
def test_whatever_it_is_it_is_read_or_refused(text: str) -> None:
    try:
        list(records(text))
    except InvalidDataset as error:
        assert "not JSON" in str(error)  # noqa: PT017


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{"a": 1}\n{"a": }\n', 2),
        ('{"a": 1}\n\n{"a": NaN}', 3),
        ('{"a": "\\ud800"}', 1),
        ('[\n{"a": 1},\n{"a": 2\n', 3),
        ('[\n{"a": 1},\n]', 3),
        ('[\n{"a": 1}\n{"a": 1}]', 3),
        ("[1] x", 1),
        ("[" * 100_000, 1),
        ("[", 1),
        (f"[{'1' * 5000}]", 1),
    ],
)
def test_invalid_json_is_named_by_file_and_line(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    with pytest.raises(InvalidDataset, match=f"rows.jsonl:{line}: not "):
        read(path, lambda _: 1)


def test_binary_input_is_named_by_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"{}\n{}\n\xff")
    with pytest.raises(InvalidDataset, match=r"rows\.jsonl:3: not UTF-8"):
        read(path, dict)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidDataset, match="No such file"):
        read(tmp_path / "none.jsonl", dict)


def odd(record: Record) -> int | None:
    """Leaves out what is even, and refuses what is negative."""
    number = whole(record, "n", 0)
    return number if number % 2 else None


def test_some_are_skipped_and_the_rest_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('\ufeff{"n": 1}\n{"n": 2}\n{"n": 3}\n{"n": -1}\n', "utf-8")
    assert read(path, odd, most=2) == [1, 3]
    with pytest.raises(InvalidDataset, match=r":4: n: must be .* at least 0, not -1"):
        read(path, odd)


@pytest.mark.parametrize("text", ["", "[]", " \n", '{"n": 2}'])
def test_nothing_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    with pytest.raises(InvalidDataset, match="nothing in it"):
        read(path, odd)


@pytest.mark.parametrize("value", [None, True, 1.0, "1", -1, []])
def test_only_whole_numbers_are(value: object) -> None:
    with pytest.raises(Malformed, match="n: must be a whole number"):
        whole({"n": value}, "n", 0)
