"""An answer that goes on from the ids so far, on any engine, and how engines end in the middle."""

from typing import Any

import orjson
import pytest

from router.simulator import EngineConfig, serve_engine
from tests.simulator.talk import MESSAGES, PROMPT, ask, chunks, until

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TOKENS = 120
"""Enough for characters of two tokens, one in 43."""

BODIES: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": PROMPT},
    CHAT: {"messages": MESSAGES},
}
EACH = pytest.mark.parametrize("path", BODIES)


def after(path: str, ids: list[int], count: int) -> dict[str, Any]:
    """The request that goes on behind these ids, of which `count` were generated."""
    body: dict[str, Any] = {"max_tokens": TOKENS - count, "return_token_ids": True}
    if path == CHAT:
        return body | {"messages": MESSAGES, "kv_transfer_params": {"prompt_token_ids": ids}}
    return body | {"prompt": ids}


async def streamed(client, engine, path: str, body: dict[str, Any]) -> list[tuple[str, list[int]]]:
    """Text and ids of each token's chunk; the ids of the prompt come first."""
    got = await chunks(client, engine, path, **body)
    prompt = got[0].get("prompt_token_ids") or got[0]["choices"][0]["prompt_token_ids"]
    parts = [chunk["choices"][0] for chunk in got[path == CHAT :]]
    texts = [part.get("text") or part.get("delta", {}).get("content") or "" for part in parts]
    return [("", prompt), *zip(texts, (part["token_ids"] for part in parts), strict=True)]


@EACH
async def test_an_answer_goes_on_from_its_ids_wherever_text_is_complete(client, engine, path):
    body = {**BODIES[path], "max_tokens": TOKENS, "return_token_ids": True}
    (_, prompt), *whole = await streamed(client, engine, path, body)
    text = "".join(text for text, _ in whole)
    ids = [token for _, tokens in whole for token in tokens]
    hold = [place for place, (text, _) in enumerate(whole) if not text]
    assert hold, "no character takes two tokens"
    async with serve_engine(EngineConfig(eos_one_in=0)) as other:
        for cut in (1, 50, hold[0], hold[0] + 2):
            asked = after(path, prompt + ids[:cut], cut)
            (_, carried), *rest = await streamed(client, other, path, asked)
            assert carried == prompt + ids[:cut]
            assert [token for _, tokens in rest for token in tokens] == ids[cut:]
            assert "".join(text for text, _ in [*whole[:cut], *rest]) == text


@EACH
async def test_a_seam_within_a_character_shows_the_whole_prompt(client, engine, path):
    body = {**BODIES[path], "max_tokens": TOKENS, "return_token_ids": True}
    (_, prompt), *whole = await streamed(client, engine, path, body)
    cut = 1 + next(place for place, (text, _) in enumerate(whole) if not text)
    ids = [token for _, tokens in whole[:cut] for token in tokens]
    _, (first, _), *_ = await streamed(client, engine, path, after(path, prompt + ids, cut))
    assert PROMPT in first


@pytest.mark.parametrize(
    ("version", "more", "is_heard"),
    [("0.32.0", {}, True), ("0.29.1", {}, False), ("0.32.0", {"echo": True}, False)],
)
async def test_ids_of_a_chat_are_ignored_by_old_engines_and_with_echo(
    client, version, more, is_heard
):
    async with serve_engine(EngineConfig(version=version)) as engine:
        body = after(CHAT, [100, 200], 0) | {"max_tokens": 1, **more}
        answer = await ask(client, engine, CHAT, **body)
        assert (answer["prompt_token_ids"] == [100, 200]) == is_heard
        assert answer["kv_transfer_params"] is None


async def test_ids_out_of_vocabulary_are_refused(client, engine):
    body = after(CHAT, [100, -1], 0)
    error = (await ask(client, engine, CHAT, **body, status=400))["error"]
    assert error["param"] == "kv_transfer_params.prompt_token_ids"


async def test_a_prompt_with_ids_is_not_echoed(client, engine):
    body: dict[str, Any] = {"prompt": "abcd", "max_tokens": 1, "echo": True}
    echoed = (await ask(client, engine, **body))["choices"][0]["text"]
    text = (await ask(client, engine, **body, return_token_ids=True))["choices"][0]["text"]
    assert echoed == "abcd" + text


@EACH
async def test_a_stream_on_an_engine_that_falls_asleep_looks_complete(client, path):
    async with serve_engine(EngineConfig(eos_one_in=0, step_s=0.01)) as engine:
        body = {**BODIES[path], "stream": True, "max_tokens": TOKENS, "return_token_ids": True}
        async with client.post(engine.url + path, json=body) as reply:
            await until(lambda: engine.state["tokens"]["generated"])
            await ask(client, engine, "/sleep")
            *_, last, done, end = (await reply.read()).split(b"\n\n")
        choice = orjson.loads(last[6:])["choices"][0]
        assert (choice["finish_reason"], choice["token_ids"]) == ("abort", [])
        assert (done, end) == (b"data: [DONE]", b"")
        assert engine.state["running"] == 0


@EACH
async def test_a_stream_on_an_engine_that_is_shut_down_ends_in_an_error(client, path):
    async with serve_engine(EngineConfig(eos_one_in=0, step_s=0.01)) as engine:
        body = {**BODIES[path], "stream": True, "max_tokens": TOKENS}
        async with client.post(engine.url + path, json=body) as reply:
            await until(lambda: engine.state["tokens"]["generated"])
            await engine.shut_down()
            *_, last, done, end = (await reply.read()).split(b"\n\n")
        assert orjson.loads(last[6:])["error"]["code"] == 500
        assert (done, end) == (b"data: [DONE]", b"")
