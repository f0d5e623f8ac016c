"""The lab itself, without the router: the engines really hand KV caches over.

If this fails, the fault is in the lab or in the engines; if only other modules do, in the router.
"""

from typing import Any

import aiohttp

from tests.engines import observe
from tests.engines.conftest import Engines
from tests.engines.service import Service
from tests.engines.traffic import COMPLETIONS, LONG_PROMPTS, Answer, ask, body

ASK_FOR_KV = {"do_remote_decode": True}


async def _reference(session: aiohttp.ClientSession, engines: Engines, text: str) -> Any:
    """What a prefill engine answers with: where the KV of this prompt can be fetched."""
    request = body(COMPLETIONS, text, max_tokens=1, kv_transfer_params=ASK_FOR_KV)
    async with session.post(engines.prefill.url + COMPLETIONS, json=request) as response:
        return (await response.json())["kv_transfer_params"]


async def _decode(
    session: aiohttp.ClientSession, decode: Service, text: str, reference: Any
) -> Answer:
    request = body(COMPLETIONS, text, kv_transfer_params=reference)
    return await ask(session, decode.url, COMPLETIONS, request)


async def _alone(session: aiohttp.ClientSession, engine: Service, text: str) -> Answer:
    return await ask(session, engine.url, COMPLETIONS, body(COMPLETIONS, text))


async def test_the_two_steps_by_hand_give_the_tokens_of_one_engine(
    session: aiohttp.ClientSession, engines: Engines
) -> None:
    decode = engines.decodes[0]
    before = await observe.load(session, decode)
    reference = await _reference(session, engines, LONG_PROMPTS[0])
    disaggregated = await _decode(session, decode, LONG_PROMPTS[0], reference)
    assert disaggregated.words == (await _alone(session, decode, LONG_PROMPTS[0])).words
    after = await observe.load(session, decode)
    assert after.transferred - before.transferred == disaggregated.prompt_tokens


async def test_another_prompts_kv_gives_other_tokens(
    session: aiohttp.ClientSession, engines: Engines
) -> None:
    """The transferred bytes are what decode reads: with wrong ones the answer is wrong."""
    decode = engines.decodes[0]
    mine, other = LONG_PROMPTS[1], LONG_PROMPTS[2]
    reference = await _reference(session, engines, mine)
    others = await _reference(session, engines, other)
    swapped = reference | {"remote_block_ids": others["remote_block_ids"]}
    wrong = await _decode(session, decode, mine, swapped)
    assert wrong.status == 200
    assert wrong.token_ids != (await _alone(session, decode, mine)).token_ids
    # Fetched once rightly too, or the prefill engine would hold it for 30 s.
    right = await _decode(session, decode, other, others)
    assert right.words == (await _alone(session, decode, other)).words
