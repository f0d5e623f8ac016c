"""The language model and its tokenizer."""

from hypothesis import given
from hypothesis import strategies as st

from router.simulator.api.prompts import render
from router.simulator.model.language import (
    EOS,
    WORDS,
    Language,
    decode,
    encode,
    forced_end,
    in_vocabulary,
    pack,
)


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


def test_lone_surrogates_do_not_break_it():
    assert decode(encode("\ud800x")) == "?x"


def test_numbers_that_no_text_gives_are_not_in_the_vocabulary():
    for token in (0, -1, True, 1.0, "a", 0x6100, 0x80_00_00_00 + 99, 0x61FF, None):
        assert not in_vocabulary(token)


def generate(tokens: list[int], count: int, model: str = "sim", eos_one_in: int = 0) -> list[int]:
    language = Language(model, eos_one_in)
    state, out = language.start(tokens), list(tokens)
    for _ in range(count):
        out.append(language.choose(state, out[-1], end=True))
        state = language.after(state, out[-1])
    return out[len(tokens) :]


PROMPT = encode("The quick brown fox jumps over the lazy dog")


@given(st.integers(0, 20))
def test_a_prompt_with_generated_tokens_in_it_goes_on_as_if_never_interrupted(cut):
    whole = generate(PROMPT, 30)
    assert whole[:cut] + generate(PROMPT + whole[:cut], 30 - cut) == whole


@given(st.integers(0, len(PROMPT) - 1), st.integers(1, 127))
def test_another_token_anywhere_in_the_prompt_gives_another_text(place, token):
    changed = [*PROMPT]
    if changed[place] != token:
        changed[place] = token
        assert generate(changed, 16) != generate(PROMPT, 16)


def test_a_lost_or_a_doubled_token_gives_another_text():
    assert generate(PROMPT[:-1], 16) != generate(PROMPT, 16)
    assert generate([*PROMPT, PROMPT[-1]], 16) != generate(PROMPT, 16)


def test_models_differ():
    assert generate(PROMPT, 16, "one") != generate(PROMPT, 16, "two")


def test_generated_text_encodes_to_the_tokens_that_were_generated():
    tokens = generate(PROMPT, 500)
    assert encode(decode(tokens)) == tokens


def test_some_characters_come_in_two_tokens():
    halves = [token for token in generate(PROMPT, 2000) if token not in WORDS]
    assert halves
    assert "�" not in decode(generate(PROMPT, 2000)[: -len(halves) or None][:1000])


def test_the_end_comes_at_the_requested_rate():
    assert generate(PROMPT, 5000, eos_one_in=0).count(EOS) == 0
    assert 30 <= generate(PROMPT, 5000, eos_one_in=100).count(EOS) <= 80


def test_the_end_can_be_masked():
    language = Language("sim", 1)
    assert language.choose(7, 65, end=True) == EOS
    assert language.choose(7, 65, end=False) != EOS


class TestForcedEnd:
    def test_without_a_marker_there_is_none(self):
        assert forced_end(PROMPT) is None
        assert forced_end(encode("<<eos:x>>")) is None

    @given(st.text(max_size=30), st.integers(1, 50))
    def test_it_is_counted_from_a_marker_at_the_end_of_the_prompt(self, text, count):
        tokens = encode(f"{text}<<eos:{count}>>")
        assert forced_end(tokens) == len(tokens) + count

    def test_tokens_after_the_marker_count(self):
        tokens = encode("<<eos:3>>")
        assert forced_end([*tokens, WORDS[0], WORDS[1]]) == len(tokens) + 3

    def test_in_a_chat_it_is_counted_from_the_assistants_header(self):
        tokens = render([{"role": "user", "content": "<<eos:2>> and more text"}])
        assert forced_end(tokens) == len(tokens) + 2
        assert forced_end([*tokens, WORDS[0]]) == len(tokens) + 2
