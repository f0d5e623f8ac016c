"""The text of an answer, from its tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.simulator.api.answer import TextStream
from router.simulator.model.language import encode


def pieces(text: str, stops: tuple[str, ...] = (), **options) -> tuple[list[str], str | None]:
    stream, tokens, out = TextStream(stops, **options), encode(text), []
    for place, token in enumerate(tokens):
        out.append(stream.feed(token, last=place == len(tokens) - 1))
        if stream.stopped_by is not None:
            break
    return out, stream.stopped_by


@given(st.text(min_size=1))
def test_the_pieces_are_the_text(text):
    assert "".join(pieces(text)[0]) == text


def test_half_a_character_waits_for_the_other_half():
    assert pieces("é") == (["", "é"], None)


@pytest.mark.parametrize("cut", [1, 2])
def test_behind_a_prompt_that_ends_within_a_character_its_whole_text_comes(cut):
    prompt = encode("hidden 世")[:-cut]
    stream = TextStream(prompt=prompt)
    assert stream.feed(encode("x")[0]) == "hidden �x"
    assert stream.feed(encode("y")[0]) == "y"


def test_a_prompt_that_ends_in_a_whole_character_stays_hidden():
    assert TextStream(prompt=encode("hidden 世")).feed(encode("x")[0]) == "x"


def test_half_a_character_at_the_end_is_replaced():
    assert TextStream().feed(0xC3, last=True) == "�"


def test_a_stop_string_ends_the_text_before_it():
    assert pieces("one two three", ("two",)) == (["on", "e "], "two")


def test_a_stop_string_can_be_kept():
    out, by = pieces("one two three", ("two",), include_stop=True)
    assert ("".join(out), by) == ("one two", "two")


@given(st.text("ab", min_size=1), st.text("ab", min_size=1, max_size=6))
def test_no_part_of_a_stop_string_gets_out_however_the_tokens_cut_it(text, stop):
    out, by = pieces(text, (stop,))
    assert "".join(out) == text.partition(stop)[0]
    assert by == (stop if stop in text else None)


def test_of_two_stop_strings_the_first_to_be_complete_wins():
    assert pieces("aaaba", ("aba", "b")) == (["aaa"], "b")
