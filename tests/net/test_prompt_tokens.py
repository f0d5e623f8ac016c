"""The prompt's length, from either engine, in any kind of answer."""

import pytest

from tests.net.engine import Call, json_reply
from tests.net.harness import Harness
from tests.net.payloads import (
    COMPLETIONS,
    DONE,
    answer_remotely,
    completion,
    event,
    prefilled,
    token,
)

USAGE = {"prompt_tokens": 1321, "completion_tokens": 2}
PROMPT = "h\u00e9llo" * 800


async def test_a_unary_answer_reports_it(harness: Harness) -> None:
    engine, router = await harness.single()
    engine.answer_all(lambda call: call.send(json_reply({"choices": [], "usage": USAGE})))
    await router.ask(COMPLETIONS, completion(PROMPT))
    record = await router.record()
    assert (record.prompt_tokens, record.text_bytes) == (1321, 4800)


@pytest.mark.parametrize("is_told", [True, False])
async def test_a_stream_reports_it_on_request(harness: Harness, is_told: bool) -> None:
    engine, router = await harness.single()

    def script(call: Call) -> None:
        usage = event({"choices": [], "usage": USAGE}) if is_told else b""
        call.stream_whole(token("a"), token("b"), usage + DONE)

    engine.answer_all(script)
    await router.ask(COMPLETIONS, completion(PROMPT, stream=True))
    assert (await router.record()).prompt_tokens == (1321 if is_told else 0)


async def test_the_prefill_engine_always_reports_it(harness: Harness) -> None:
    prefill, decode = await harness.engine(), await harness.engine()
    router = await harness.router(decode, prefill=(prefill,))
    prefill.answer_all(lambda call: call.send(prefilled(usage=USAGE)))

    def script(call: Call) -> None:
        call.stream_whole(token("a"), DONE)

    decode.answer_all(script)
    await router.ask(COMPLETIONS, completion(PROMPT, stream=True))
    assert (await router.record()).prompt_tokens == 1321


async def test_an_error_is_no_measurement(harness: Harness) -> None:
    prefill, decode = await harness.engine(), await harness.engine()
    router = await harness.router(decode, prefill=(prefill,))
    prefill.answer_all(answer_remotely)
    decode.answer_all(lambda call: call.send(json_reply({"usage": USAGE}, status=400)))
    await router.ask(COMPLETIONS, completion(PROMPT))
    assert (await router.record()).prompt_tokens == 0


@pytest.mark.parametrize("is_large", [False, True])
async def test_of_a_prompt_with_tools_it_is_not_noted(harness: Harness, *, is_large: bool) -> None:
    engine, router = await harness.single()
    engine.answer_all(lambda call: call.send(json_reply({"choices": [], "usage": USAGE})))
    prompt = PROMPT * (300 if is_large else 1)
    for body in (completion(prompt), completion(prompt, tools=[{"type": "function"}])):
        await router.ask(COMPLETIONS, body)
    text, with_tools = await router.records(2)
    assert (text.prompt_tokens, text.text_bytes) == (1321, len(prompt.encode()))
    assert (with_tools.prompt_tokens, with_tools.text_bytes) == (0, 0)
