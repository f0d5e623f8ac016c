from hypothesis import given
from hypothesis import strategies as st

from router.simulator.model.tokenizer import EOS, decode, encode, in_vocabulary, pack


@given(st.text())
def test_any_text_comes_back_exactly(text):
    assert decode(encode(text)) == text


@given(st.text())
def test_every_token_of_a_text_is_in_the_vocabulary(text):
    assert all(in_vocabulary(token) for token in encode(text))


@given(st.lists(st.integers(-5, 1 << 33)))
def test_whatever_is_in_the_vocabulary_can_be_hashed_and_decoded(tokens):
    known = [token for token in tokens if in_vocabulary(token)]
    decode(known)
    assert len(pack(known)) == 4 * len(known)


def test_a_token_is_four_characters():
    assert len(encode("x" * 400)) == 100


def test_texts_with_a_common_beginning_have_common_tokens():
    assert encode("a long beginning, then this")[:4] == encode("a long beginning, or that")[:4]


def test_special_tokens_are_not_in_the_text():
    assert decode([*encode("end"), EOS]) == "end"


def test_a_broken_character_is_replaced():
    assert decode([0xC3]) == "�"


def test_what_json_can_carry_and_utf8_cannot_does_not_break_it():
    assert decode(encode("\ud800x")) == "?x"


def test_numbers_that_no_text_gives_are_not_in_the_vocabulary():
    for token in (0, -1, True, 1.0, "a", 0x6100, 0x80_00_00_00 + 99, 0x61FF, None):
        assert not in_vocabulary(token)
