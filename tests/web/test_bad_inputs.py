"""Bad inputs: the documented table has the router's answers, and no value of a field breaks it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.net.client import request
from tests.net.engine import Call, json_reply
from tests.net.harness import Harness
from tests.net.payloads import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    GENERATE,
    MESSAGES,
    RESPONSES,
    prefilled,
)
from tests.net.test_lmcache import LMCACHE
from tests.web.bad_inputs import CASES, DOCUMENT, Routers, ask, table, with_table
from tests.web.body_fields import fields_of, read_in_router
from tests.web.turns import Traced, Turns


async def test_the_table_matches_the_routers_answers(harness: Harness, tmp_path: Path) -> None:
    """Every input of a row is answered alike, and what is refused comes to no engine."""
    text = DOCUMENT.read_text()
    made = await table(Routers(harness, tmp_path))
    assert text == with_table(text, made), "python -m tests.web.bad_inputs --write"


async def test_messages_errors_are_anthropics(harness: Harness, tmp_path: Path) -> None:
    """However an error comes about, as long as the path has been read."""
    routers, asked = Routers(harness, tmp_path), 0
    for case in CASES:
        for data in case.inputs:
            if not data.partition(b" ")[2].startswith(COMPLETIONS.encode()):
                continue
            asked += 1
            answer = await ask(routers, case, data)
            other = await ask(
                routers, case, data.replace(COMPLETIONS.encode(), MESSAGES.encode(), 1)
            )
            assert other.status == answer.status, (case.what, other)
            if answer.status != 200:
                message = answer.error["message"].replace(COMPLETIONS, MESSAGES)
                assert other.anthropic_error["message"] == message
    assert asked > len(CASES)


# Values of every type, for each field that the router reads.

MESSAGE = {"role": "user", "content": "a" * 2000}
PROMPTS: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "a" * 2000},  # and nothing else: LMCache's prefill shares its token
    CHAT: {"messages": [MESSAGE]},
    RESPONSES: {"input": "a" * 2000},
    MESSAGES: {"messages": [MESSAGE]},
    EMBEDDINGS: {"input": "a" * 2000},
    GENERATE: {"token_ids": [1] * 500},
}
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**53, -(2**63), 2**64 - 1, 1.5, 1e308, -0.0, "", "1", "true"),
    *("1e999", "nan", "x" * 3000, "\x00\r\n", "𝄞", [], [1], ["a"], [None], [[]], [[1], [2]], [{}]),
    *([{"role": "user", "content": "a" * 3000}], [{"role": {}, "content": {}}], {}, {"a": 1}),
    *([{"content": [{"type": "text", "text": 1}, {"type": [], "text": "a"}, 5]}], [-1], [2**40]),
    *({"type": "tool"}, {"type": []}, {"kv_transfer_params": {}}, {"include_usage": "x"}),
    *([1.5] * 3000, [True] * 3000, ["a", 1], {"": {"": []}}),
)


def test_every_field_that_the_code_reads_is_tried() -> None:
    tried = {name for path in PROMPTS for name in fields_of(path)}
    read = read_in_router()
    missing = {name: module for name, module in read.items() if name not in tried}
    assert missing == {}, "tests/web/body_fields.py lacks them"
    assert {"thinking", "tools", "ec_transfer_params"} <= read.keys()  # by name, and by constants


def _judge(call: Call) -> None:
    """An engine in any role, which answers every request."""
    assert isinstance(call.json, dict)
    if call.target == b"/tokenize":
        call.send(json_reply({"tokens": [1, 2, 3]}))
    elif "disagg_spec" in call.json.get("kv_transfer_params", {}):
        choice = {"text": "t", "finish_reason": "length"}
        call.send(json_reply({"choices": [choice], "kv_transfer_params": {"first_tok": 7}}))
    elif call.target == EMBEDDINGS.encode():
        call.send(json_reply({}))  # it passes through: no KV parameters are taken out
    else:
        call.send(prefilled(usage={"completion_tokens": 1}))


def tries(path: str) -> Iterator[tuple[str, Any]]:
    """The same code reads a field on all paths that generate: its values are tried on them in
    turn."""
    for name in fields_of(path):
        alike = [each for each in PROMPTS if each != EMBEDDINGS and name in fields_of(each)]
        first, step = (0, 1) if path == EMBEDDINGS else (alike.index(path), len(alike))
        yield from ((name, value) for value in VALUES[first::step])


@pytest.mark.parametrize("path", PROMPTS)
@pytest.mark.parametrize("connector", ["nixl", "lmcache"])
async def test_no_value_of_a_field_breaks_the_router(
    harness: Harness, path: str, connector: str
) -> None:
    """The router answers 400, or the engine judges; both legs are written, and nothing is logged
    as a fault of the router (the harness looks)."""
    prefill, decode = await harness.engine(), await harness.engine()
    settings = LMCACHE if connector == "lmcache" else {}
    router = await harness.router(decode, prefill=(prefill,), routing_threshold=0, **settings)
    prefill.answer_all(_judge)
    decode.answer_all(_judge)
    client = await router.client()
    for name, value in tries(path):
        answer = await client.ask(path, {"model": "m", **PROMPTS[path], name: value})
        assert answer.status in (200, 400, 404), (name, value, answer)
        if answer.status != 200 and path == MESSAGES:
            assert answer.anthropic_error
        elif answer.status != 200:
            assert answer.error["param"] in ("model", "body", "request_id", None), (name, value)
        assert b"transfer_params" not in answer.body
    assert prefill.seen > 0 or path == EMBEDDINGS


@pytest.mark.parametrize("name", ["model", "prompt", "stream", "n", "kv_transfer_params"])
async def test_duplicate_keys_mean_the_same_to_both(harness: Harness, name: str) -> None:
    """The last one, as every JSON parser on the way does; forbidden ones are both removed."""
    engine, router = await harness.single()
    one, two = {"model": ("x", "m"), "n": (1, 2)}.get(name, ("a", "b"))
    raw = b'{"%b":%b,"model":"m","%b":%b}' % (
        name.encode(),
        orjson.dumps(one),
        name.encode(),
        orjson.dumps(two),
    )
    client = await router.send(COMPLETIONS, raw)
    call: Call = await engine.call()
    assert call.json.get(name) == (None if name == "kv_transfer_params" else two)
    assert call.body == raw or name == "kv_transfer_params"
    call.send(json_reply({}))
    await client.answer()


# Time and memory.

HEAVY = {
    "objects": b'{"model":"m","prompt":"a","x":[' + b"{}," * 20_000 + b"{}]}",
    "arrays": b'{"model":"m","prompt":"a","x":[' + b"[]," * 20_000 + b"[]]}",
    "many objects": b'{"model":"m","prompt":"a","x":[' + b"{}," * 340_000 + b"{}]}",
    "more objects": b'{"model":"m","prompt":"a","x":[' + b"{}," * 1_000_000 + b"{}]}",
    "too many objects": b'{"model":"m","prompt":"a","x":[' + b"{}," * 5_000_000 + b"{}]}",
    "keys": b'{"model":"m"' + b"".join(b',"%d":0' % n for n in range(7000)) + b"}",
    "few texts": b'{"model":"m","prompt":["' + b'a","' * 2600 + b'a"]}',
    "one text": b'{"model":"m","prompt":"' + b"a" * 1_000_000 + b'"}',
    "escapes": b'{"model":"m","prompt":"' + b"\\u00e9" * 160_000 + b'"}',
    "digits": b'{"model":"m","n":' + b"1" * 1_000_000 + b"}",
    "digits in a text": b'{"model":"m","n":"' + b"1" * 1_000_000 + b'"}',
    "parts": b"--b\r\n" + b"content-disposition:form-data;name=model\r\n" * 24_000,
}

MOST_STEPS = 30_000
"""In a turn of the event loop, of which others may wait 50 ms: at most 5 ms. The most that is read
on the loop are 22,000, of a prompt of a million letters."""

MOST_MEMORY = 30
"""Times the body's size: orjson sets aside 12, the values take up to 24 of a small body."""


@pytest.mark.parametrize("raw", HEAVY.values(), ids=HEAVY)
async def test_no_body_holds_up_the_others(harness: Harness, raw: bytes) -> None:
    """Made to take long: without the limits the worst of these take minutes, and the test ends at
    its time limit. Test client and engine take their part of the turns. What is counted is the
    same on every machine."""
    engine, router = await harness.single()
    engine.answer_all(lambda call: call.send(json_reply({})))
    multipart = raw.startswith(b"--")
    path = "/v1/audio/transcriptions" if multipart else COMPLETIONS
    kind = (
        b"content-type",
        b"multipart/form-data; boundary=b" if multipart else b"application/json",
    )
    client, data = await router.client(), request(path, raw, kind)

    async def ask() -> None:
        await client.send(data)
        assert (await client.answer()).status in (200, 400)

    await ask()  # the process that reads large bodies is there now
    with Turns() as turns:
        await ask()
    assert turns.most < MOST_STEPS
    with Traced() as memory:
        await ask()
    assert memory.peak < MOST_MEMORY * len(raw)
