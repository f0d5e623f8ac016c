"""What is known of the prompts in an engine's KV cache."""

import pytest

from router.core.judge.known_prompts import KnownPrompts
from router.core.prefix.trust import HISTORY, NOTHING
from router.core.request_facts import PrefixKeys
from router.core.values import Gauges

PROMPT = PrefixKeys((16, 32), (128, 256))


def after_a_prompt() -> KnownPrompts:
    """An engine that has computed the prompt."""
    prompts = KnownPrompts()
    prompts.sent.claim(PROMPT).confirm()
    return prompts


@pytest.mark.parametrize(("tokens", "uncached"), [(1000, 744), (256, 1), (100, 1)])
def test_at_least_one_token_has_to_be_computed(tokens: int, uncached: int) -> None:
    assert after_a_prompt().uncached(tokens, PROMPT) == uncached


def test_predictions_count_as_far_as_they_are_trusted() -> None:
    prompts = after_a_prompt()
    prompts.trust.share = 0.5
    assert prompts.uncached(1000, PROMPT) == 872
    assert (prompts.known_by(None), prompts.known_prefix(PROMPT, None).held) == (HISTORY, 256)
    prompts.trust.share = 0.1
    assert prompts.known_by(None) is NOTHING


def test_the_cache_is_as_large_as_the_engine_reports() -> None:
    prompts = after_a_prompt()
    prompts.observe(Gauges(cache_tokens=128))
    assert prompts.sent.capacity == 128


def test_a_new_engine_holds_nothing() -> None:
    prompts = after_a_prompt()
    prompts.trust.share = 0.5
    prompts.forget()
    assert (prompts.uncached(1000, PROMPT), prompts.trust.share) == (1000, 1.0)
