import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gate.inputs import prompts
from benchmarks.gate.inputs.tokenizer import BYTES, Tokenizer, bundled, parsed, written

ALL_BYTES = [bytes([number]) for number in BYTES]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return bundled()


def with_pieces(*pieces: bytes) -> Tokenizer:
    return Tokenizer([*ALL_BYTES, *pieces])


@given(st.text())
def test_a_text_comes_back(text: str) -> None:
    plain = with_pieces(b"he", b" t", b" the")
    assert plain.decode(plain.encode(text)) == text


@given(text=st.text(st.characters()) | st.text("ab _'s\n\r\t 1é漢\U0001f600-", max_size=300))
def test_a_text_comes_back_from_the_bundled_one(tokenizer: Tokenizer, text: str) -> None:
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text
    assert len(tokens) == tokenizer.count(text) <= len(text.encode("utf-8", "surrogatepass"))


def test_earlier_merges_are_applied_first() -> None:
    assert with_pieces(b"ab", b"bc").count("abc") == 2
    learnt = with_pieces(b"bc", b"ab", b"abc")
    assert [learnt.decode([token]) for token in learnt.encode("abcab")] == ["abc", "ab"]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("the", 1),
        ("The function returns the number of items in the list.", 11),
        ("it isn't", 3),
        ("12345", 2),
        ("a\n\nb", 3),
    ],
)
def test_known_counts(tokenizer: Tokenizer, text: str, tokens: int) -> None:
    assert tokenizer.count(text) == tokens


def test_our_prompts_are_exact(tokenizer: Tokenizer) -> None:
    assert {tokenizer.count(text) for text in prompts.build(50, 128, 7).texts} == {128}


def test_it_is_a_small_vocabulary(tokenizer: Tokenizer) -> None:
    assert len(tokenizer) == 8000


@pytest.mark.parametrize(
    "text", ["a" * 200_000, " " * 200_000, "漢" * 200_000, "\n" * 200_000, "xyzzy plugh " * 50_000]
)
def test_no_text_is_slow(tokenizer: Tokenizer, text: str) -> None:
    began = time.process_time()
    assert tokenizer.count(text) > 0
    assert time.process_time() - began < 2


@given(st.lists(st.binary(max_size=9), max_size=9))
def test_a_vocabulary_that_is_written_comes_back(pieces: list[bytes]) -> None:
    text = written(pieces, "from nowhere")
    assert text.isascii()
    assert parsed(text) == tuple(pieces)


def test_a_vocabulary_lacks_no_byte_and_has_nothing_twice() -> None:
    with pytest.raises(ValueError, match="every byte"):
        Tokenizer(ALL_BYTES[1:])
    with pytest.raises(ValueError, match="once"):
        with_pieces(b"ab", b"ab")
