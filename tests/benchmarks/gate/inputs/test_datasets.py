from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gate.inputs import prompts
from benchmarks.gate.inputs.datasets import (
    Conversation,
    InvalidDataset,
    Shape,
    Turn,
    checksum,
    counted,
    synthetic,
)

SMALL = Shape(conversations=6, input_tokens=9, output_tokens=5)
small = st.builds(
    Shape,
    conversations=st.integers(1, 9),
    input_tokens=st.integers(3, 30),
    input_deviation=st.just(0.0) | st.floats(0, 20),
    output_tokens=st.integers(1, 30),
    output_deviation=st.just(0.0) | st.floats(0, 20),
    turns=st.integers(1, 4),
    think=st.floats(0, 5),
    think_varies=st.booleans(),
)


def test_the_plain_ones_are_the_pinned_prompts() -> None:
    found = synthetic(Shape(conversations=100), seed=100)
    texts = [each.turns[0].text for each in found.conversations]
    assert texts == list(prompts.build(100, 128, 100).texts)
    assert {len(each.turns) for each in found.conversations} == {1}


@given(small, st.integers(0, 2**32))
def test_the_seed_decides(shape: Shape, seed: int) -> None:
    found = synthetic(shape, seed)
    assert found == synthetic(shape, seed)
    assert len(found.conversations) == shape.conversations
    for each in found.conversations:
        assert len(each.turns) == shape.turns
        assert each.turns[0].think == 0
        assert all(turn.text and turn.output_tokens for turn in each.turns)


@given(small.filter(lambda shape: not shape.input_deviation), st.integers(1, 3))
def test_prefixes_are_shared_and_the_rest_is_not(shape: Shape, prefixes: int) -> None:
    plain = synthetic(shape, 7)
    found = synthetic(replace(shape, prefixes=prefixes, prefix_tokens=8), 7)
    heads = [each.turns[0].text.split(" ")[:8] for each in found.conversations]
    assert all(head == heads[number % prefixes] for number, head in enumerate(heads))
    assert len({tuple(head) for head in heads}) == min(prefixes, shape.conversations)
    for with_prefix, without in zip(found.conversations, plain.conversations, strict=True):
        assert with_prefix.turns[0].text.split(" ")[8:] == without.turns[0].text.split(" ")
        assert with_prefix.turns[1:] == without.turns[1:]


def test_lengths_and_pauses_have_the_requested_deviation() -> None:
    shape = Shape(2000, 40, 8, 90, 20, turns=2, think=3, think_varies=True)
    found = synthetic(shape, 1).conversations
    turns = [turn for each in found for turn in each.turns]
    lengths = [len(turn.text.split(" ")) for turn in turns]
    outputs = [turn.output_tokens or 0 for turn in turns]
    thinks = [each.turns[1].think for each in found]
    assert sum(lengths) / 4000 == pytest.approx(40, rel=0.02)
    assert sum(outputs) / 4000 == pytest.approx(90, rel=0.02)
    assert sum(thinks) / 2000 == pytest.approx(3, rel=0.1)
    assert min(lengths) < 32 < 48 < max(lengths)


def test_equal_checksums_are_equal_inputs() -> None:
    found = synthetic(SMALL, 1)
    assert found.checksum == checksum(found.conversations)
    others = [
        synthetic(SMALL, 2),
        synthetic(replace(SMALL, output_tokens=6), 1),
        synthetic(replace(SMALL, conversations=5), 1),
        synthetic(replace(SMALL, turns=2), 1),
    ]
    assert len({found.checksum, *(each.checksum for each in others)}) == 5


def test_a_turn_sends_the_whole_conversation() -> None:
    talk = Conversation((Turn("a"), Turn("b"), Turn("c")), system="be kind")
    assert talk.messages(0) == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "a"},
    ]
    said = [(each["role"], each["content"]) for each in talk.messages(2, ["x", "y"])]
    assert said[1:] == [
        ("user", "a"),
        ("assistant", "x"),
        ("user", "b"),
        ("assistant", "y"),
        ("user", "c"),
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"conversations": 0},
        {"input_tokens": 0},
        {"think": -1.0},
        {"prefixes": 2},
        {"prefix_tokens": 2},
    ],
)
def test_impossible_values_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidDataset, match=next(iter(wrong))):
        replace(SMALL, **wrong)  # type: ignore[arg-type]


def test_too_few_words_for_so_many_prompts_are_refused() -> None:
    with pytest.raises(InvalidDataset, match="distinct"):
        synthetic(Shape(conversations=1000, input_tokens=1), 1)


async def test_turns_are_fitted_to_the_servers_tokenizer_after_their_common_prefix() -> None:
    async def count(text: str) -> int | None:  # it takes "the" for two, and begins with one
        words = text.split(" ")
        return 1 + len(words) + words.count("the")

    shape = replace(SMALL, turns=2, prefixes=2, prefix_tokens=8, think=1.0)
    made = synthetic(shape, 7)
    found = await counted(made, count)
    assert [await count(t.text) for c in found.conversations for t in c.turns] == [17, 9] * 6
    for now, was in zip(found.conversations, made.conversations, strict=True):
        assert now.turns[0].text.split(" ")[:8] == was.turns[0].text.split(" ")[:8]
        assert [replace(turn, text="") for turn in now.turns] == [
            replace(turn, text="") for turn in was.turns
        ]
    assert found.counted_by == "tokenize"
    assert found.checksum == checksum(found.conversations) != made.checksum
    assert (found.mean_turns, found.thinks) == (2, True)


async def test_nobodys_count_leaves_conversations_as_they_are() -> None:
    async def count(text: str) -> int | None:
        return None

    made = synthetic(SMALL, 1)
    assert await counted(made, count) is made
