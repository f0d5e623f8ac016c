"""Tokens per byte: learned from engines' usage, only for their models."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.events import Probed, RequestEnded
from router.core.fleet.fleet import Fleet
from router.core.fleet.ledger import Ledger
from router.core.health import HealthSignal, HealthThresholds
from router.core.request_facts import Facts
from router.core.wire.media import IMAGE_TOKENS
from router.core.wire.tokens import (
    MAX_MODELS,
    MAX_TOKENS_PER_BYTE,
    MEMORY_BYTES,
    MIN_BYTES,
    MIN_TOKENS_PER_BYTE,
    WARM_BYTES,
    TokenRatios,
)
from tests.core.fixtures import CHAT, COMPLETIONS, D0, MESSAGES, RESPONSES, request

TEXT = 10 * WARM_BYTES
"""Bytes that are enough."""


def learned(tokens: int, text_bytes: int = TEXT) -> TokenRatios:
    """Of the model m, from one text."""
    ratios = TokenRatios()
    ratios.learn("m", text_bytes, tokens)
    return ratios


def tokens_of(ratios: TokenRatios, text: str) -> float:
    """The estimate of a prompt of this text."""
    facts = request(CHAT, model="m", messages=[{"role": "user", "content": text}])
    return ratios.scale(facts) * facts.tokens


def test_before_anything_is_known_a_token_is_four_bytes() -> None:
    ratios = TokenRatios()
    assert tokens_of(ratios, "x" * 4000) == pytest.approx(1000)
    assert tokens_of(ratios, "\u4e2d" * 4000) == pytest.approx(3000)
    assert ratios.per_byte("m") is None


def test_usage_reveals_tokens_per_byte() -> None:
    ratios = learned(tokens=TEXT // 2)
    assert ratios.per_byte("m") == 0.5
    assert tokens_of(ratios, "x" * 4000) == pytest.approx(2000)
    assert ratios.per_byte("n") is None
    assert ratios.per_byte(None) is None
    assert ratios.of(["n", "m"]) == {"m": 0.5}


LONG = "x" * MIN_BYTES
ASKED = {"role": "user", "content": LONG}
IMAGE = {"type": "image_url", "image_url": {"url": "data:1"}}
SMALL_IMAGE = {"type": "image_url", "image_url": {"url": "data:;base64,R0lGODlhAQABAA" + "A" * 40}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [ASKED]}),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": LONG}]}]}),
        (CHAT, {"messages": [ASKED, "?"], "tools": [], "truncate_prompt_tokens": None}),
        (COMPLETIONS, {"prompt": LONG}),
        (MESSAGES, {"messages": [ASKED], "max_tokens": 9}),
        (RESPONSES, {"input": LONG}),
    ],
)
def test_tokens_per_byte_are_learned_from_prompts_of_text(path: str, body: dict[str, Any]) -> None:
    assert request(path, **body).learnable_bytes == MIN_BYTES


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [{"role": "user", "content": LONG[1:]}]}),
        (CHAT, {"messages": [ASKED], "tools": [{"type": "function"}]}),
        (CHAT, {"messages": [ASKED], "documents": [{"text": "abc"}]}),
        (CHAT, {"messages": [ASKED], "truncate_prompt_tokens": 100}),
        (CHAT, {"messages": [ASKED, {"role": "assistant", "content": "", "reasoning": "Hm."}]}),
        (CHAT, {"messages": [{"role": "assistant", "content": "", "reasoning_content": LONG}]}),
        (CHAT, {"messages": [ASKED, {"role": "user", "content": [{"type": "refusal"}]}]}),
        (CHAT, {"messages": [{"role": "user", "content": [SMALL_IMAGE]}]}),
        (CHAT, {"messages": [{"role": "user", "content": [IMAGE]}], "tools": [{}]}),
        (RESPONSES, {"input": LONG, "previous_response_id": "resp_1"}),
        (COMPLETIONS, {"prompt": list(range(MIN_BYTES))}),
        (COMPLETIONS, {"prompt": LONG, "prompt_embeds": "AAAA"}),
    ],
)
def test_prompts_with_more_than_text_teach_nothing(path: str, body: dict[str, Any]) -> None:
    assert request(path, **body).learnable_bytes == 0


def with_images(number: int, text: str = "") -> Facts:
    """A chat of the model m."""
    content = [IMAGE] * number + [{"type": "text", "text": text}]
    return request(CHAT, model="m", messages=[{"role": "user", "content": content}])


def ratios_of_images(tokens: int, images: int = 10) -> TokenRatios:
    """Learned from a prompt of images with so many tokens."""
    ratios = TokenRatios()
    ratios.learn("m", with_images(images).learnable_bytes, tokens, has_media=True)
    return ratios


def test_usage_reveals_the_tokens_of_images() -> None:
    ratios = ratios_of_images(tokens=2560)  # Gemma 3
    facts = with_images(4)
    assert ratios.scale(facts) * facts.tokens == pytest.approx(4 * 256)


def test_what_images_have_shown_is_forgotten_when_they_are_estimated_in_another_way() -> None:
    ratios = ratios_of_images(tokens=2560)
    for _ in range(9):
        ratios.learn("m", 1 << 16, 1 << 13)
    ratios.forget_media()
    assert ratios.scale(with_images(4)) == 1.0
    assert ratios.of(["m"]) == {"m": 1 / 8}


def test_images_do_not_change_what_is_known_of_text() -> None:
    ratios = ratios_of_images(tokens=2560)
    assert tokens_of(ratios, "x" * 4000) == pytest.approx(1000)
    assert ratios.of(["m"]) == {}


def test_before_images_are_known_their_text_counts_as_text() -> None:
    facts = with_images(2, "\u4e2d" * 4000)
    learned_text = learned(tokens=TEXT // 2)
    assert TokenRatios().scale(facts) * facts.tokens == pytest.approx(3000 + 2 * IMAGE_TOKENS)
    assert learned_text.scale(facts) * facts.tokens == pytest.approx(6000 + 2 * IMAGE_TOKENS)
    assert TokenRatios().scale(with_images(3)) == 1.0


@pytest.mark.parametrize("tokens", [10 * IMAGE_TOKENS // 33, 33 * 10 * IMAGE_TOKENS])
def test_implausible_images_teach_nothing(tokens: int) -> None:
    assert ratios_of_images(tokens).scale(with_images(1)) == 1.0


def test_ids_are_as_many_as_they_are() -> None:
    facts = request(model="m", prompt=[7] * 1000)
    assert learned(tokens=TEXT // 2).scale(facts) == 1.0


@pytest.mark.parametrize(
    ("text_bytes", "tokens"),
    [
        (MIN_BYTES - 1, MIN_BYTES // 4),
        (TEXT, int(MIN_TOKENS_PER_BYTE * TEXT) - 1),
        (TEXT, int(MAX_TOKENS_PER_BYTE * TEXT) + 1),
        (0, 10),
    ],
)
def test_prompts_with_other_parts_than_text_teach_nothing(text_bytes: int, tokens: int) -> None:
    ratios = learned(tokens, text_bytes)
    assert ratios.per_byte("m") is None
    ratios.learn(None, TEXT, TEXT)
    assert ratios.of(["m", "n"]) == {}


def test_a_few_texts_are_not_believed() -> None:
    ratios = TokenRatios()
    for _ in range(WARM_BYTES // MIN_BYTES - 1):
        ratios.learn("m", MIN_BYTES, MIN_BYTES)
        assert ratios.per_byte("m") is None
    ratios.learn("m", MIN_BYTES, MIN_BYTES)
    assert ratios.per_byte("m") == 1.0


def test_old_measurements_are_dropped() -> None:
    ratios = learned(tokens=MEMORY_BYTES, text_bytes=2 * MEMORY_BYTES)
    for _ in range(20):
        ratios.learn("m", MEMORY_BYTES, MEMORY_BYTES // 4)
    assert ratios.per_byte("m") == pytest.approx(0.25, rel=0.02)


@given(
    st.lists(st.tuples(st.sampled_from("mn"), st.integers(0, 1 << 22), st.integers(0, 1 << 22))),
    st.integers(1, 10_000),
)
def test_any_text_has_a_sensible_number_of_tokens(
    said: list[tuple[str, int, int]], length: int
) -> None:
    ratios = TokenRatios()
    for model, text_bytes, tokens in said:
        ratios.learn(model, text_bytes, tokens)
    text = "x" * (4 * length)
    assert (
        MIN_TOKENS_PER_BYTE * len(text)
        <= tokens_of(ratios, text)
        <= MAX_TOKENS_PER_BYTE * len(text) + 1
    )


def test_changing_models_do_not_fill_the_memory() -> None:
    ratios = TokenRatios()
    names = [str(number) for number in range(MAX_MODELS + 3)]
    for name in names:
        ratios.learn(name, TEXT, TEXT)
    assert set(ratios.of(names)) == set(names[3:])


def ended(model: str | None, tokens: int) -> RequestEnded:
    """A request of so many prompt tokens, as its engine says."""
    record = RequestEnded("id", CHAT, 0.0)
    record.model, record.text_bytes, record.prompt_tokens = model, TEXT, tokens
    return record


def test_only_models_that_engines_serve_are_learned() -> None:
    fleet = Fleet([D0], Ledger(), HealthThresholds(), stale_after=5.0)
    fleet.observe(Probed(D0, HealthSignal.OK, ({"id": "m"},)), 0.0)
    for model in ("m", "no-such-model", None):
        fleet.ended(ended(model, TEXT // 3))
    fleet.ended(ended("m", 0))  # it did not say
    assert fleet.token_ratios.of(["m", "no-such-model"]) == pytest.approx({"m": 1 / 3}, rel=0.01)
