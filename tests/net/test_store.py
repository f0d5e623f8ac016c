"""The store's two legs over real sockets, and the count of prompts that were not found in it."""

from typing import Any

import pytest

from router.core.events import FellBack
from router.core.values import Role
from tests.net.engine import ScriptedEngine, json_reply
from tests.net.harness import Harness, Running
from tests.net.payloads import COMPLETIONS, DONE, event
from tests.net.test_continuation import piece

ASK: dict[str, Any] = {"model": "m", "prompt": "hi", "max_tokens": 9}
STREAM = ASK | {"stream": True, "stream_options": {"include_usage": True}}
MISS = FellBack(Role.DECODE, "store_miss")


def counted(cached: int | None) -> dict[str, Any]:
    """A usage."""
    details = None if cached is None else {"cached_tokens": cached}
    return {"prompt_tokens": 90, "completion_tokens": 1, "prompt_tokens_details": details}


def whole(cached: int | None) -> bytes:
    """A unary answer."""
    return json_reply({"choices": [{"text": "a"}], "usage": counted(cached)})


async def _router(
    harness: Harness, *others: ScriptedEngine, **settings: Any
) -> tuple[Running, ScriptedEngine, ScriptedEngine]:
    """A router whose prefill engine states that 16 tokens were cached."""
    prefill, decode = await harness.engine(), await harness.engine()
    prefill.answer_all(lambda call: call.send(whole(16)))
    router = await harness.router(
        decode, *others, prefill=(prefill,), disagg_connector_type="store", **settings
    )
    return router, prefill, decode


@pytest.mark.parametrize(("cached", "missed"), [(80, []), (0, [MISS]), (16, [MISS]), (None, [])])
@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
async def test_a_prompt_that_is_not_found_is_counted(
    harness: Harness, stream: bool, cached: int | None, missed: list[FellBack]
) -> None:
    router, prefill, decode = await _router(harness, stream_continuation="off")
    client = await router.send(COMPLETIONS, STREAM if stream else ASK)
    call = await decode.call()
    assert call.json == (STREAM if stream else ASK)
    if stream:
        text = event({"choices": [{"text": "a"}]})
        end: dict[str, Any] = {"choices": []}
        call.stream_whole(text, event(end | {"usage": counted(cached)}), DONE)
        expected = text + event(end | {"usage": counted(None if cached is None else 16)}) + DONE
        assert (await client.answer()).body == expected
    else:
        call.send(whole(cached))
        expected = whole(None if cached is None else 16).partition(b"\r\n\r\n")[2]
        assert (await client.answer()).body == expected
    record = await router.record()
    assert router.all(FellBack) == list(record.fallbacks) == missed
    assert (record.outcome, prefill.seen, decode.seen) == ("ok", 1, 1)


async def test_the_prefill_gets_one_token_and_no_parameters(harness: Harness) -> None:
    router, prefill, decode = await _router(harness)
    prefill.answer_all(None)
    await router.send(COMPLETIONS, STREAM)
    call = await prefill.call()
    assert call.json == ASK | {"stream": False, "max_tokens": 1, "ignore_eos": True}
    assert decode.seen == 0


async def test_a_decode_engine_that_fails_costs_no_second_prefill(harness: Harness) -> None:
    other = await harness.engine()
    router, prefill, decode = await _router(harness, other)
    for engine in (decode, other):
        engine.answer_all(
            lambda call: call.send(
                json_reply({"error": {"message": "x", "code": 500}}, 500)
                if decode.seen + other.seen == 1
                else whole(80)
            )
        )
    assert (await router.ask(COMPLETIONS, ASK)).status == 200
    assert (prefill.seen, decode.seen, other.seen) == (1, 1, 1)
    assert router.all(FellBack) == [FellBack(Role.DECODE, "status_5xx")]


async def test_a_broken_stream_goes_on_without_another_prefill(harness: Harness) -> None:
    other = await harness.engine()
    router, prefill, decode = await _router(harness, other, stream_continuation="on")
    client = await router.send(COMPLETIONS, STREAM)
    first = await decode.call()
    first.stream(piece("x", [100], prompt_token_ids=[5, 6, 7]))
    answer = await client.begin()
    while b'"x"' not in answer.body:
        await answer.more()
    first.close()
    second = await other.call()
    assert second.json["prompt"] == [5, 6, 7, 100]
    second.stream_whole(piece("y", [101]), piece("", [102], finish_reason="stop"), DONE)
    await answer.rest()
    assert answer.body.endswith(DONE)
    assert prefill.seen == 1
    assert router.all(FellBack) == [FellBack(Role.DECODE, "continued")]
