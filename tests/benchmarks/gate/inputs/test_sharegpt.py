import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.gate.inputs.datasets import Conversation, InvalidDataset, Turn
from benchmarks.gate.inputs.sharegpt import ROLES, sharegpt

TALK = [
    {"from": "system", "value": "be kind"},
    {"from": "gpt", "value": "unasked"},
    {"from": "human", "value": "hello"},
    {"from": "gpt", "value": "hello to you"},
    {"from": "human", "value": "and now?"},
    {"from": "gpt", "value": "nothing"},
]


def write(path: Path, *entries: Any) -> Path:
    path.write_text("\n".join(json.dumps(entry) for entry in entries))
    return path


def words(text: str) -> int:
    return len(text.split())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "talks.json"


def test_a_recorded_answers_length_limits_the_new_one(path: Path) -> None:
    found = sharegpt(write(path, {"id": "x", "conversations": TALK}), words, think=2)
    expected = Conversation((Turn("hello", 3), Turn("and now?", 1, 2)), "be kind")
    assert found.conversations == (expected,)
    assert found.counted_by == "bundled"


def test_arrays_and_lines_are_the_same(path: Path, tmp_path: Path) -> None:
    entries = [{"conversations": TALK}, {"conversations": TALK[2:]}]
    lines = sharegpt(write(path, *entries), words)
    array = sharegpt(write(tmp_path / "array.json", entries), words)
    assert lines.conversations == array.conversations
    assert lines.checksum == array.checksum


def test_conversations_may_be_cut(path: Path) -> None:
    write(path, *[{"conversations": TALK}] * 5)
    found = sharegpt(path, words, most=2, turns=1)
    assert [each.turns for each in found.conversations] == [(Turn("hello", 3),)] * 2


def test_without_questions_no_query_is_sent(path: Path) -> None:
    write(path, {"conversations": []}, {"conversations": TALK[:2]}, {"conversations": TALK})
    assert len(sharegpt(path, words).conversations) == 1


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ([], "not an object"),
        ({}, "conversations: not a list"),
        ({"conversations": [7]}, r"conversations\[0\]: not an object"),
        ({"conversations": [{"from": "dog", "value": ""}]}, "'dog' is none of human"),
        ({"conversations": [{"from": "gpt", "value": None}]}, "value: not a text"),
        ({"conversations": [{"from": [], "value": ""}]}, "is none of"),
    ],
)
def test_errors_name_file_and_line(path: Path, entry: object, reason: str) -> None:
    write(path, {"conversations": TALK}, entry)
    with pytest.raises(InvalidDataset, match=f"talks.json:2: .*{reason}"):
        sharegpt(path, words)


said = st.fixed_dictionaries(
    {"from": st.sampled_from([*ROLES, "dog", 1]), "value": st.text() | st.none()}
)
entries = st.lists(
    st.none()
    | st.dictionaries(
        st.sampled_from(["conversations", "id"]), st.lists(said | st.integers()) | st.text()
    )
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(entries)
def test_whatever_it_is_it_is_read_or_refused(path: Path, found: list[Any]) -> None:
    try:
        dataset = sharegpt(write(path, *found), words)
    except InvalidDataset as error:
        assert str(path) in str(error)  # noqa: PT017
    else:
        assert all(each.turns for each in dataset.conversations)
