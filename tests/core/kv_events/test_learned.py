"""Token ids from answers are found again by their text."""

from array import array
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.kv_events import lookups
from router.core.kv_events.lookups import LearnedTokens, prompt_ids
from router.core.prefix.keys import prefix_keys
from router.core.request_facts import PrefixKeys
from tests.core.fixtures import CHAT, request


def packed(ids: Any) -> bytes:
    """Ids as they are kept."""
    return array("I", ids).tobytes()


def chat(*messages: str) -> PrefixKeys:
    """The keys of a conversation."""
    return prefix_keys(request(CHAT, messages=[{"role": "user", "content": m} for m in messages]))


SYSTEM, FIRST, SECOND = "s" * 2048, "a" * 1024, "b" * 1024


def test_a_conversation_that_goes_on_is_known_up_to_where_it_was() -> None:
    tokens = LearnedTokens()
    tokens.learn(chat(SYSTEM, FIRST), packed(range(700)))
    assert tokens.find(chat(SYSTEM, FIRST, SECOND)) == (packed(range(700)), 768)
    assert tokens.find(chat(SYSTEM, FIRST)) == (packed(range(700)), 768)


def test_of_a_text_that_agrees_in_part_the_same_part_of_the_ids_is_known() -> None:
    tokens = LearnedTokens()
    tokens.learn(chat(SYSTEM, FIRST), packed(range(600)))
    assert tokens.find(chat(SYSTEM, SECOND)) == (packed(range(400)), 512)
    assert tokens.find(chat(SECOND, FIRST)) is None


def test_the_longest_known_text_is_found_whatever_was_learned_last() -> None:
    tokens = LearnedTokens()
    tokens.learn(chat(SYSTEM, FIRST), packed(range(600)))
    tokens.learn(chat(SYSTEM, SECOND), packed(range(1000, 1600)))
    assert tokens.find(chat(SYSTEM, FIRST)) == (packed(range(600)), 768)
    assert tokens.find(chat(SYSTEM, "c" * 1024)) == (packed(range(1000, 1400)), 512)


def test_learning_again_replaces() -> None:
    tokens = LearnedTokens()
    tokens.learn(chat(SYSTEM), packed(range(500)))
    tokens.learn(chat(SYSTEM), packed(range(400)))
    assert (len(tokens), tokens.ids) == (1, 400)
    assert tokens.find(chat(SYSTEM)) == (packed(range(400)), 512)


def test_the_least_recently_used_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookups, "MAX_LEARNED", 1000)
    tokens = LearnedTokens()
    tokens.learn(chat(FIRST), packed(range(400)))
    tokens.learn(chat(SECOND), packed(range(400)))
    assert tokens.find(chat(FIRST)) is not None
    tokens.learn(chat(SYSTEM), packed(range(400)))
    assert tokens.find(chat(SECOND)) is None
    assert tokens.find(chat(FIRST)) is not None
    tokens.learn(chat("d" * 2048), packed(range(2000)))
    assert (len(tokens), tokens.ids, tokens._wholes) == (0, 0, {})


def test_evicted_keys_take_no_blocks_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookups, "MAX_LEARNED", 1000)
    tokens = LearnedTokens()
    tokens.learn(chat(SYSTEM, FIRST), packed(range(600)))
    tokens.learn(chat(SYSTEM, SECOND), packed(range(600)))
    assert len(tokens) == 1
    assert tokens.find(chat(SYSTEM, FIRST)) == (packed(range(400)), 512)


def test_keys_of_text_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookups, "MAX_KEYS", 6)
    tokens = LearnedTokens()
    for letter in "abcdefgh":
        tokens.learn(chat(letter * 2048), packed(range(5)))
    assert len(tokens._wholes) <= 6
    assert tokens.find(chat("h" * 2048)) is not None


def told(document: object) -> bytes | None:
    """The ids in an answer."""
    return prompt_ids(orjson.dumps(document))


def test_ids_are_found_in_every_kind_of_answer() -> None:
    ids = list(range(300))
    assert told({"choices": [], "prompt_token_ids": ids}) == packed(ids)
    assert told({"choices": [{"text": "", "prompt_token_ids": ids}]}) == packed(ids)
    first = b"data: " + orjson.dumps({"prompt_token_ids": None}) + b"\n\n"
    second = b"data: " + orjson.dumps({"prompt_token_ids": ids}) + b"\n\n"
    assert prompt_ids(first + second) == packed(ids)
    assert prompt_ids(b'{"prompt_token_ids": [1, 2]}') == packed([1, 2])


def test_an_answer_of_a_real_engine_without_ids_has_none() -> None:
    for path in (Path(__file__).parents[1] / "samples").glob("*stream*.sse"):
        assert prompt_ids(path.read_bytes()) is None


def test_a_text_that_looks_like_ids_is_none() -> None:
    assert told({"text": '"prompt_token_ids":[1,2,3]'}) is None
    assert told({"prompt_token_ids": ["1"]}) is None
    assert told({"prompt_token_ids": [-1]}) is None
    assert told({"prompt_token_ids": []}) is None
    assert prompt_ids(b'{"prompt_token_ids":[1,2') is None


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_any_answer_can_be_searched(before: bytes, after: bytes) -> None:
    assert prompt_ids(before + b'"prompt_token_ids":[' + after) is None or b"]" in after
