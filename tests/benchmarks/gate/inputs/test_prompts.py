import pytest

from benchmarks.gate.inputs.prompts import WORDS, build, counted


def test_prompts_are_distinct_and_of_so_many_words() -> None:
    prompts = build(100, 128, 100)
    assert len(set(prompts.texts)) == 100
    assert {len(text.split(" ")) for text in prompts.texts} == {128}
    assert {word for text in prompts.texts for word in text.split(" ")} <= set(WORDS)
    assert all(len(word) == 3 for word in WORDS)
    assert len(set(WORDS)) == len(WORDS)


def test_the_seed_pins_every_byte() -> None:
    assert build(100, 128, 100) == build(100, 128, 100)
    assert build(100, 128, 100).checksum != build(100, 128, 101).checksum
    # Results of different versions are comparable as long as this holds.
    assert build(100, 128, 100).checksum.startswith("339352aa5e2d215c")


def test_more_prompts_begin_with_the_fewer() -> None:
    assert build(20, 32, 7).texts == build(30, 32, 7).texts[:20]


def test_so_few_words_have_not_so_many_orders() -> None:
    with pytest.raises(ValueError, match="no 100 distinct prompts of 1 tokens"):
        build(100, 1, 100)


async def test_texts_are_fitted_to_the_servers_tokenizer() -> None:
    async def count(text: str) -> int | None:  # it takes "the" for two, and begins with one
        words = text.split(" ")
        return 1 + len(words) + words.count("the")

    fitted = await counted(build(20, 64, 1), count)
    assert fitted.counted_by == "tokenize"
    assert {await count(text) for text in fitted.texts} == {64}


async def test_nobodys_count_leaves_them_unchanged() -> None:
    async def count(text: str) -> int | None:
        return None

    prompts = build(20, 64, 1)
    assert await counted(prompts, count) == prompts
    assert prompts.counted_by is None


async def test_a_tokenizer_that_no_text_fits_is_an_error() -> None:
    async def count(text: str) -> int | None:
        return 2 * len(text.split(" ")) + 1

    with pytest.raises(ValueError, match="no text of 64 tokens"):
        await counted(build(1, 64, 1), count)
