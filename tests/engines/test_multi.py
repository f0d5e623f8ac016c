"""Claim: a decode engine whose MultiConnector has a store beside NIXL finds the prompt of a direct
request there. What is moved by NIXL is in test_connector_matrix.py."""

from collections.abc import Iterator

import aiohttp
import pytest

from tests.engines import observe
from tests.engines.connectors import Pair, empty, pair_of, stored
from tests.engines.traffic import COMPLETIONS, LONG_PROMPTS, ask, body


@pytest.fixture
async def _whole_fleet() -> None:
    """These tests have engines of their own."""


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with pair_of("multi") as found:
        yield found


async def test_a_prompt_that_is_in_the_store_is_not_computed(
    session: aiohttp.ClientSession, pair: Pair
) -> None:
    """What a decode engine gets directly, without parameters."""
    decode = pair.alone
    for text in LONG_PROMPTS[:3]:
        empty(pair.store)
        first = await ask(session, pair.engines.prefill.url, COMPLETIONS, body(COMPLETIONS, text))
        before = await observe.load(session, decode)
        again = await ask(session, decode.url, COMPLETIONS, body(COMPLETIONS, text))
        [after] = await observe.settled(session, [decode], within=5)
        assert again.words == first.words
        assert after.transferred - before.transferred == stored(again.prompt_tokens)
