import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.gate.inputs.datasets import InvalidDataset
from benchmarks.gate.inputs.mooncake import BLOCK, mooncake, words
from benchmarks.gate.inputs.prompts import WORDS


def row(at: float, length: int, ids: list[int] | None, output: int = 7) -> dict[str, Any]:
    found: dict[str, Any] = {"timestamp": at, "input_length": length, "output_length": output}
    return found if ids is None else {**found, "hash_ids": ids}


def write(path: Path, *rows: Any) -> Path:
    path.write_text("\n".join(json.dumps(each) for each in rows))
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.jsonl"


def blocks(text: str) -> list[str]:
    found = text.split(" ")
    return [" ".join(found[at : at + BLOCK]) for at in range(0, len(found), BLOCK)]


def test_equal_ids_are_equal_text_and_others_are_not(path: Path) -> None:
    write(path, row(0, 1200, [1, 2, 3]), row(5, 1536, [1, 2, 4]), row(9, 1536, [9, 2, 3]))
    first, second, third = (blocks(each.turns[0].text) for each in mooncake(path, 1).conversations)
    assert first[:2] == second[:2]
    assert (third[1], third[0]) == (first[1], third[0])
    assert third[0] != first[0]
    assert third[2].startswith(f"{first[2]} ")
    assert len({*first, *second, *third}) == 6


def test_lengths_and_times_are_the_traces_own(path: Path) -> None:
    write(path, row(2500, 1, [5], 3), row(1000, 513, [5, 6]), row(3000, 40, None))
    found = mooncake(path, 1)
    assert found.stamps == (1.0, 2.5, 3.0)
    lengths = [len(each.turns[0].text.split(" ")) for each in found.conversations]
    assert lengths == [513, 1, 40]
    assert [each.turns[0].output_tokens for each in found.conversations] == [7, 3, 7]


def test_sharing_needs_an_explicit_setting(path: Path) -> None:
    found = mooncake(write(path, row(0, 40, None), row(0, 40, None)), 1)
    first, second = found.conversations
    assert first.turns[0].text != second.turns[0].text
    assert [*found.conversations[-1:]] == [found.conversations[-1]] == [second]


def test_the_seed_and_the_rows_decide(path: Path, tmp_path: Path) -> None:
    write(path, row(0, 40, [1]))
    assert mooncake(path, 1).conversations[0] == mooncake(path, 1).conversations[0]
    assert mooncake(path, 1).checksum == mooncake(path, 1).checksum
    other = write(tmp_path / "other.jsonl", row(0, 41, [1]))
    checksums = {mooncake(path, 1), mooncake(path, 2), mooncake(other, 1)}
    assert len({each.checksum for each in checksums}) == 3


def test_blocks_may_be_smaller_and_traces_cut(path: Path) -> None:
    write(path, row(0, 40, [1, 2, 3]), row(1, 40, [1, 2, 3]), row(2, 40, [1]))
    found = mooncake(path, 1, block=16, most=2)
    assert len(found.conversations) == 2


def test_words_are_ours_and_made_fast() -> None:
    began = time.process_time()
    found = [words(BLOCK, number) for number in range(200)]
    assert time.process_time() - began < 0.5
    assert {word for text in found for word in text.split(" ")} == set(WORDS)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (row(-1, 1, [1]), "timestamp: must be milliseconds, not -1"),
        ({"input_length": 1, "output_length": 1}, "timestamp: must be milliseconds, not None"),
        (row(0, 0, [1]), "input_length: must be a whole number of at least 1, not 0"),
        (row(0, 1, [1], 0), "output_length"),
        (row(0, 10**12, [1]), "no request has more"),
        (row(0, 513, [1]), "hash_ids: 1, but input_length 513 is 2 blocks of 512"),
        (row(0, 512, [1, 2]), "hash_ids: 2, but"),
        ({**row(0, 1, [1]), "hash_ids": [True]}, "hash_ids: not a list of whole numbers"),
        ({**row(0, 1, [1]), "hash_ids": "1"}, "hash_ids: not a list"),
        ([], "not an object"),
    ],
)
def test_errors_name_file_and_line(path: Path, wrong: object, reason: str) -> None:
    write(path, row(0, 1, [1]), wrong)
    with pytest.raises(InvalidDataset, match=f"trace.jsonl:2: {reason}"):
        mooncake(path, 1)


numbers = st.integers(-2, 3000) | st.floats() | st.none()
rows = st.fixed_dictionaries(
    {"timestamp": numbers, "input_length": numbers, "output_length": numbers},
    optional={"hash_ids": st.lists(st.integers(), max_size=6) | st.text()},
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(rows, max_size=3))
def test_whatever_it_is_it_is_read_or_refused(path: Path, found: list[Any]) -> None:
    try:
        dataset = mooncake(write(path, *found), 1)
    except InvalidDataset as error:
        assert str(path) in str(error)  # noqa: PT017
    else:
        for each in dataset.conversations:
            assert each.turns[0].text
