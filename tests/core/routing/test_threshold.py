"""The rule is one comparison, exact at the boundary for every shape of prompt."""

from typing import Any

import pytest

from router.core.request_facts import Facts
from router.core.routing.threshold import decide
from router.core.values import Decision, Mode
from tests.core.fixtures import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, RESPONSES, request

N = 512
BELOW = Decision(Mode.DIRECT, "below_threshold")
REMOTE = Decision(Mode.REMOTE, "at_or_above_threshold")


def messages(text: str) -> list[dict[str, str]]:
    """A chat of two messages with this much text in all."""
    half = len(text) // 2
    return [
        {"role": "system", "content": text[:half]},
        {"role": "user", "content": text[half:]},
    ]


def parts(text: str) -> list[dict[str, Any]]:
    """A message in parts, one of which is no text."""
    refusal = {"type": "refusal", "refusal": "no"}
    return [{"role": "user", "content": [refusal, {"type": "text", "text": text}]}]


def of_tokens(shape: str, tokens: int) -> Facts:
    """A request whose prompt has exactly so many estimated tokens."""
    text = "x" * (4 * tokens)
    match shape:
        case "string":
            return request(COMPLETIONS, prompt=text)
        case "list holding one string":
            return request(COMPLETIONS, prompt=[text])
        case "token ids":
            return request(COMPLETIONS, prompt=[7] * tokens)
        case "list holding one list of token ids":
            return request(COMPLETIONS, prompt=[[7] * tokens])
        case "chat":
            return request(CHAT, messages=messages(text))
        case "chat in parts":
            return request(CHAT, messages=parts(text))
        case "messages":
            return request(MESSAGES, system=text[:4], messages=messages(text[4:]))
        case "responses":
            return request(RESPONSES, instructions=text[:4], input=text[4:])
    raise AssertionError(shape)


SHAPES = (
    "string",
    "list holding one string",
    "token ids",
    "list holding one list of token ids",
    "chat",
    "chat in parts",
    "messages",
    "responses",
)


@pytest.mark.parametrize("shape", SHAPES)
class TestAtTheBoundary:
    """N - 1 tokens are direct, N are remote."""

    def test_one_token_less_is_direct(self, shape: str) -> None:
        assert decide(of_tokens(shape, N - 1), N, has_prefill_pool=True) == BELOW

    def test_the_threshold_itself_is_remote(self, shape: str) -> None:
        assert decide(of_tokens(shape, N), N, has_prefill_pool=True) == REMOTE

    def test_zero_means_always(self, shape: str) -> None:
        assert decide(of_tokens(shape, 0), 0, has_prefill_pool=True) == REMOTE


@pytest.mark.parametrize(("characters", "expected"), [(4 * N - 1, BELOW), (4 * N, REMOTE)])
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_the_last_character_decides(path: str, characters: int, expected: Decision) -> None:
    text = "x" * characters
    facts = request(path, prompt=text, messages=messages(text))
    assert decide(facts, N, has_prefill_pool=True) == expected


@pytest.mark.parametrize(
    "prompt",
    [["x" * (2 * N), "x" * (2 * N)], [[7] * (N // 2)] * 2, ["x" * (2 * N), [7] * (N // 2)]],
)
def test_several_prompts_are_summed_and_go_direct_for_being_several(prompt: object) -> None:
    facts = request(COMPLETIONS, prompt=prompt)
    assert facts.tokens == N
    assert decide(facts, N, has_prefill_pool=True) == Decision(Mode.DIRECT, "several_prompts")


def test_without_a_prefill_pool_everything_is_direct() -> None:
    expected = Decision(Mode.DIRECT, "no_prefill_pool")
    assert decide(of_tokens("string", N), 0, has_prefill_pool=False) == expected
    assert decide(request(n=2), 0, has_prefill_pool=False) == expected


def test_a_reason_for_going_direct_outweighs_the_size() -> None:
    facts = request(COMPLETIONS, prompt="x" * (4 * N), n=2)
    assert decide(facts, N, has_prefill_pool=True) == Decision(Mode.DIRECT, "several_answers")


def test_requests_without_generation_are_direct() -> None:
    assert decide(request(EMBEDDINGS), 0, has_prefill_pool=True) == Decision(Mode.DIRECT, "route")
