"""Token ids in, token ids out: /inference/v1/generate."""

from typing import Any

from tests.net.engine import json_reply
from tests.net.harness import Harness
from tests.net.payloads import DONE, KV, event

GENERATE = "/inference/v1/generate"
HOSTILE = {"remote_host": "evil"}


def _asked(**more: Any) -> dict[str, Any]:
    sampling = {"max_tokens": 2, "extra_args": {"kv_transfer_params": HOSTILE}}
    return {"model": "m", "token_ids": list(range(600)), "sampling_params": sampling, **more}


def _tokens(*ids: int, finish: str | None = None) -> bytes:
    choice = {"index": 0, "logprobs": None, "finish_reason": finish, "token_ids": ids}
    return event({"request_id": "generate-tokens-1", "choices": [choice], "usage": None})


async def test_a_long_prompt_of_ids_is_prefilled_remotely(harness: Harness) -> None:
    prefill, decode = await harness.engine(), await harness.engine()
    router = await harness.router(decode, prefill=(prefill,), routing_threshold=500)
    prefill.answer_all(
        lambda call: call.send(json_reply({"choices": [], "kv_transfer_params": KV}))
    )
    decode.answer_all(lambda call: call.stream_whole(_tokens(7), _tokens(8, finish="length"), DONE))
    seen: list[Any] = []
    prefill.on_call = decode.on_call = seen.append
    answer = await router.ask(GENERATE, _asked(stream=True))
    assert answer.body == _tokens(7) + _tokens(8, finish="length") + DONE
    first, second = seen
    assert first.json["sampling_params"] == {"max_tokens": 1, "ignore_eos": True, "extra_args": {}}
    assert first.json["kv_transfer_params"]["do_remote_decode"] is True
    assert second.json["sampling_params"] == {"max_tokens": 2, "extra_args": {}}
    assert second.json["kv_transfer_params"] == KV
    record = await router.record()
    assert (record.mode, record.tokens) == ("remote_prefill", 600)


async def test_another_engine_answers_if_the_first_one_fails_before_a_token(
    harness: Harness,
) -> None:
    engines = [await harness.engine(), await harness.engine()]
    router = await harness.router(*engines)
    failed: list[bytes] = []

    def fail_once(call: Any) -> None:
        if failed:
            call.stream_whole(_tokens(7, finish="length"), DONE)
        else:
            failed.append(call.target)
            call.send(json_reply({"error": {"message": "no", "code": 500}}, 500))

    for engine in engines:
        engine.answer_all(fail_once)
    answer = await router.ask(GENERATE, _asked(stream=True))
    assert failed == [GENERATE.encode()]
    assert answer.body == _tokens(7, finish="length") + DONE
