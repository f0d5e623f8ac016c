from pathlib import Path

from benchmarks.gate.inputs.prompts import WORDS
from benchmarks.gate.inputs.tokenizer import BYTES, Tokenizer
from benchmarks.gate.inputs.train_tokenizer import Trainer, docstrings, joined, words

SINGLE = len(BYTES)


def learnt(counts: dict[bytes, int], size: int = 20) -> list[bytes]:
    return Trainer(counts).train(SINGLE + size)[SINGLE:]


def test_the_most_frequent_neighbours_are_joined_first() -> None:
    assert learnt({b"hug": 10, b"pug": 5, b"pun": 12, b"bun": 4, b"hugs": 5})[:3] == [
        b"ug",
        b"un",
        b"hug",
    ]


def test_of_equals_the_first_in_order_is_joined() -> None:
    assert learnt({b"cd": 9, b"ab": 9}) == [b"ab", b"cd"]


def test_rare_pairs_are_not_learnt() -> None:
    assert learnt({b"ab": 4}) == []


def test_a_vocabulary_ends_at_its_size() -> None:
    assert learnt({b"abcdefgh": 9}, size=3) == [b"ab", b"abc", b"abcd"]


def test_repetitions_are_joined_from_the_left() -> None:
    assert joined([b"a", b"a", b"a"], (b"a", b"a")) == [b"aa", b"a"]
    assert joined([b"b", b"a", b"b", b"a"], (b"b", b"a")) == [b"ba", b"ba"]


def test_training_knows_the_words_of_our_prompts() -> None:
    counts = words(["some text"])
    assert counts[b" text"] == 1
    tokenizer = Tokenizer(Trainer(counts).train(2000))
    assert {tokenizer.count(text) for word in WORDS for text in (word, f" {word}")} == {1}


def test_the_text_is_docstrings(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text('"""A module."""\nclass A:\n    """A class."""\n')
    (tmp_path / "b.py").write_text('def f():\n    "A function."\n    "no more"\n')
    (tmp_path / "c.py").write_text("not python")
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "d.py").write_text('"""Left out."""')
    found = [text for text in docstrings(tmp_path) if text]
    assert found == ["A module.", "A class.", "A function."]
