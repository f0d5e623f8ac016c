"""Bad inputs: the documented table is what the router answers, and no value of a field breaks
it."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.net.client import request
from tests.net.engine import Call, json_reply
from tests.net.harness import Harness
from tests.net.payloads import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, RESPONSES, prefilled
from tests.net.test_lmcache import LMCACHE
from tests.web.bad_inputs import DOCUMENT, Routers, table, with_table


async def test_the_table_is_what_the_router_answers(harness: Harness, tmp_path: Path) -> None:
    """Every input of a row is answered alike, and what is refused comes to no engine."""
    text = DOCUMENT.read_text()
    made = await table(Routers(harness, tmp_path))
    assert text == with_table(text, made), "python -m tests.web.bad_inputs --write"


# The fields that the router reads, with values of every type.

FIELDS: dict[str, tuple[str, ...]] = {
    COMPLETIONS: ("prompt", "suffix", "echo", "logprobs", "best_of", "use_beam_search"),
    CHAT: ("messages", "tools", "tool_choice", "max_completion_tokens", "top_logprobs"),
    RESPONSES: ("input", "instructions", "previous_response_id", "background", "store"),
    MESSAGES: ("messages", "system", "tools", "tool_choice", "stop_sequences"),
    EMBEDDINGS: ("input",),
}
COMMON = (
    *("model", "stream", "stream_options", "n", "max_tokens", "min_tokens", "priority", "user"),
    *("prompt_embeds", "prompt_logprobs", "vllm_xargs", "cache_salt", "chat_template_kwargs"),
    *("kv_transfer_params", "ec_transfer_params", "return_token_ids", "temperature", "seed"),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**53, -(2**63), 2**64 - 1, 1.5, 1e308, -0.0, "", "1", "true"),
    *("1e999", "nan", "x" * 3000, "\x00\r\n", "𝄞", [], [1], ["a"], [None], [[]], [[1], [2]], [{}]),
    *([{"role": "user", "content": "a" * 3000}], [{"role": {}, "content": {}}], {}, {"a": 1}),
    *([{"content": [{"type": "text", "text": 1}, {"type": [], "text": "a"}, 5]}], [-1], [2**40]),
    *({"type": "tool"}, {"type": []}, {"kv_transfer_params": {}}, {"include_usage": "x"}),
    *([1.5] * 3000, [True] * 3000, ["a", 1], {"": {"": []}}),
)


@pytest.mark.parametrize(
    ("path", "connector"),
    [*((path, "nixl") for path in FIELDS), (COMPLETIONS, "lmcache"), (CHAT, "lmcache")],
)
async def test_no_value_of_a_field_breaks_the_router(
    harness: Harness, path: str, connector: str
) -> None:
    """The router answers 400, or the engine judges; both legs are written, and nothing is logged
    as a fault of the router (the harness looks)."""
    prefill, decode = await harness.engine(), await harness.engine()
    settings = LMCACHE if connector == "lmcache" else {}
    router = await harness.router(decode, prefill=(prefill,), routing_threshold=0, **settings)

    def judge(call: Call) -> None:
        assert isinstance(call.json, dict)
        # What passes through has no KV parameters that could be taken out.
        told = json_reply({}) if path == EMBEDDINGS else prefilled(usage={"completion_tokens": 1})
        call.send(told)

    prefill.answer_all(judge)
    decode.answer_all(judge)
    client = await router.client()
    base = {"model": "m", "prompt": "a" * 2000, "input": "a" * 2000, "messages": []}
    for name in (*FIELDS[path], *COMMON):
        for value in VALUES:
            answer = await client.ask(path, {**base, name: value})
            assert answer.status in (200, 400, 404), (name, value, answer)
            if answer.status != 200:
                assert answer.error["param"] in ("model", "body", None), (name, value)
            assert b"transfer_params" not in answer.body


@pytest.mark.parametrize("name", ["model", "prompt", "stream", "n", "kv_transfer_params"])
async def test_of_a_key_that_comes_twice_the_router_and_the_engine_read_the_same(
    harness: Harness, name: str
) -> None:
    """The last one, as every JSON parser on the way does; forbidden ones are both removed."""
    engine = await harness.engine()
    router = await harness.router(engine)
    one, two = {"model": ("x", "m"), "n": (1, 2)}.get(name, ("a", "b"))
    raw = b'{"%b":%b,"model":"m","%b":%b}' % (
        name.encode(),
        orjson.dumps(one),
        name.encode(),
        orjson.dumps(two),
    )
    client = await router.client()
    await client.send(request(COMPLETIONS, raw))
    call: Call = await engine.call()
    assert call.json.get(name) == (None if name == "kv_transfer_params" else two)
    assert call.body == raw or name == "kv_transfer_params"
    call.send(json_reply({}))
    await client.answer()


# Time and memory.

HEAVY = {
    "objects": b'{"model":"m","prompt":"a","x":[' + b"{}," * 20_000 + b"{}]}",
    "arrays": b'{"model":"m","prompt":"a","x":[' + b"[]," * 20_000 + b"[]]}",
    "keys": b'{"model":"m"' + b"".join(b',"%d":0' % n for n in range(7000)) + b"}",
    "one text": b'{"model":"m","prompt":"' + b"a" * 1_000_000 + b'"}',
    "escapes": b'{"model":"m","prompt":"' + b"\\u00e9" * 160_000 + b'"}',
    "digits": b'{"model":"m","n":' + b"1" * 1_000_000 + b"}",
    "digits in a text": b'{"model":"m","n":"' + b"1" * 1_000_000 + b'"}',
    "parts": b"--b\r\n" + b"content-disposition:form-data;name=model\r\n" * 24_000,
}


@pytest.mark.parametrize("raw", HEAVY.values(), ids=HEAVY)
async def test_no_body_holds_up_the_others(harness: Harness, raw: bytes) -> None:
    """Made to take long: without the limits the worst of these take minutes, and the test ends at
    its time limit."""
    engine = await harness.engine()
    router = await harness.router(engine)
    engine.answer_all(lambda call: call.send(json_reply({})))
    multipart = raw.startswith(b"--")
    path = "/v1/audio/transcriptions" if multipart else COMPLETIONS
    kind = (
        b"content-type",
        b"multipart/form-data; boundary=b" if multipart else b"application/json",
    )
    client = await router.client()
    await client.send(request(path, raw, kind))
    assert (await client.answer()).status in (200, 400)
