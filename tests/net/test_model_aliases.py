"""Clients ask for a model by an alias: engines get the model, answers name the alias."""

from collections import Counter
from typing import Any

import orjson
import pytest

from router.core.events import ModelChosen, Probed
from router.core.health import HealthSignal
from router.core.routing.large_body import LARGE_BYTES
from router.settings import Settings, SettingsError
from router.web.app import Router
from tests.net.engine import Call, ScriptedEngine, json_reply
from tests.net.harness import Harness, Running
from tests.net.payloads import (
    CHAT,
    COMPLETIONS,
    DONE,
    EMBEDDINGS,
    MESSAGES,
    RESPONSES,
    answer_remotely,
    completion,
    event,
    token,
)
from tests.net.test_continuation import PROMPT, Bench, piece

ASKED = completion("hi", model="gpt")
STREAMED = completion("hi", model="gpt", stream=True)


def answer(call: Call) -> None:
    """A whole answer that names the model of the request."""
    call.send(json_reply({"model": call.json["model"], "choices": [{"text": "ok"}]}))


async def serving(harness: Harness, *models: str) -> ScriptedEngine:
    """An engine that serves these models."""
    engine = await harness.engine()
    engine.models = json_reply({"object": "list", "data": [{"id": name} for name in models]})
    engine.answer_all(answer)
    return engine


def reload(router: Running, **changes: Any) -> None:
    """As the configuration does it."""
    router.router.reload(router.router.settings.model_copy(update=changes))


def chosen(router: Running) -> Counter[tuple[str, str]]:
    """How often each alias stood for each model."""
    return Counter((each.alias, each.model) for each in router.all(ModelChosen))


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, MESSAGES, RESPONSES])
async def test_engine_gets_the_model_and_client_the_alias(harness: Harness, path: str) -> None:
    engine, router = await harness.single(model_aliases=("gpt=m",))
    raw = b'{"model": "gpt","messages":[], "input":"x","prompt":"\\"model\\":\\"gpt\\""}'
    client = await router.send(path, raw)
    call = await engine.call()
    assert await call.read() == raw.replace(b': "gpt"', b': "m"')
    call.send(json_reply({"model": "m", "choices": [{"text": "ok"}]}))
    answered = await client.answer()
    assert answered.json["model"] == "gpt"
    assert (await router.record()).model == "m"
    assert chosen(router) == {("gpt", "m"): 1}


async def test_every_event_of_a_stream_names_the_alias(harness: Harness) -> None:
    engine, router = await harness.single(model_aliases=("gpt=m",))
    client = await router.send(COMPLETIONS, STREAMED)
    call = await engine.call()
    call.stream(token("a", model="m"))
    stream = await (await client.begin()).until(token("a", model="gpt"))
    for text in "bcd":
        call.events(token(text, model="m"))
        await stream.until(token(text, model="gpt"))
    usage = event({"model": "m", "choices": [], "usage": {"completion_tokens": 4}})
    call.end(usage, DONE)
    await stream.rest()
    assert b'"model":"m"' not in stream.body
    assert stream.body.endswith(DONE)
    assert (await router.record()).generated == 4


def named(chunk: bytes) -> bytes:
    """The event of a token with the model's name."""
    return chunk.replace(b'"created":1', b'"created":1,"model":"m"')


async def test_a_continued_stream_names_the_alias(harness: Harness) -> None:
    bench = Bench()
    bench.engines = engines = [await harness.engine(), await harness.engine()]
    settings: dict[str, Any] = {"stream_continuation": "on", "speed_probe_interval": 0}
    router = await harness.router(*engines, model_aliases=("gpt=m",), **settings)
    client = await router.send(COMPLETIONS, STREAMED)
    call = await bench.next_call()
    call.stream(named(piece("x", [100], prompt_token_ids=PROMPT)), named(piece("y", [101])))
    stream = await client.begin()
    while b'"y"' not in stream.body:
        await stream.more()
    call.close()
    following = await bench.next_call()
    assert following.json["model"] == "m"
    first = piece("z", [102], name="b", prompt_token_ids=[*PROMPT, 100, 101])
    following.stream(named(first), named(piece("", [], name="b", finish_reason="stop")), DONE)
    following.end()
    await stream.rest()
    events = [orjson.loads(each[6:]) for each in stream.body.split(b"\n\n")[:-2]]
    assert [each["model"] for each in events] == ["gpt"] * 4


async def test_a_prompt_is_prefilled_under_the_models_name(harness: Harness) -> None:
    prefill, decode = await harness.engine(), await serving(harness, "m")
    router = await harness.router(decode, prefill=(prefill,), model_aliases=("gpt=m",))
    client = await router.send(COMPLETIONS, ASKED)
    call = await prefill.call()
    await call.read()
    assert call.json["model"] == "m"
    answer_remotely(call)
    assert (await client.answer()).json["model"] == "gpt"


async def test_a_large_body_asks_for_the_model(harness: Harness) -> None:
    engine = await serving(harness, "m")
    router = await harness.router(engine, model_aliases=("gpt=m",))
    answered = await router.ask(COMPLETIONS, completion("x" * (LARGE_BYTES + 1), model="gpt"))
    assert answered.json["model"] == "gpt"


async def test_other_routes_answer_with_the_models_name(harness: Harness) -> None:
    engine = await serving(harness, "m")
    router = await harness.router(engine, model_aliases=("gpt=m",))
    answered = await router.ask(EMBEDDINGS, {"model": "gpt", "input": "x"})
    assert answered.json["model"] == "m"


async def test_aliases_are_listed(harness: Harness) -> None:
    engine = await serving(harness, "m")
    router = await harness.router(engine, model_aliases=("gpt=m",))
    client = await router.client()
    listed = (await client.get("/v1/models")).json["data"]
    assert [card["id"] for card in listed] == ["m", "gpt"]
    assert (await client.get("/v1/models/gpt")).json["id"] == "gpt"
    assert (await client.ask(COMPLETIONS, completion(model="other"))).status == 404


async def test_a_split_is_exact_and_counted_and_changes_by_a_reload(harness: Harness) -> None:
    a, b = await serving(harness, "a"), await serving(harness, "b")
    router = await harness.router(a, b, model_aliases=("gpt=a*9 b",))
    client = await router.client()
    for _ in range(40):
        assert (await client.ask(COMPLETIONS, ASKED)).json["model"] == "gpt"
    assert chosen(router) == {("gpt", "a"): 36, ("gpt", "b"): 4}
    assert (a.seen, b.seen) == (36, 4)
    reload(router, model_aliases=("gpt=b",))
    for _ in range(5):
        await client.ask(COMPLETIONS, ASKED)
    assert (a.seen, b.seen) == (36, 9)
    page = (await client.get("/metrics")).body
    assert b'pd_router_model_alias_requests_total{alias="gpt",model="b"} 9.0' in page


async def test_a_client_stays_with_its_model(harness: Harness) -> None:
    a, b = await serving(harness, "a"), await serving(harness, "b")
    router = await harness.router(a, b, model_aliases=("gpt=a b by x-user",))
    client = await router.client()
    for user in (b"1", b"2", b"3", b"4"):
        before = chosen(router)
        for _ in range(4):
            await client.ask(COMPLETIONS, ASKED, (b"x-user", user))
        assert list((chosen(router) - before).values()) == [4]


async def test_the_fallback_serves_while_the_engines_are_down(harness: Harness) -> None:
    engine, other = await serving(harness, "a"), await serving(harness, "b")
    router = await harness.router(engine, other, model_aliases=("gpt=a else b", "strict=a"))
    client = await router.client()
    assert (await client.ask(COMPLETIONS, ASKED)).status == 200
    for _ in range(3):
        router.router.observe(Probed(router.endpoint(engine), HealthSignal.FAILED))
    assert (await client.ask(COMPLETIONS, ASKED)).json["model"] == "gpt"
    assert (await client.ask(COMPLETIONS, completion(model="strict"))).status == 503
    assert other.seen == 1


# Wrong aliases.


@pytest.mark.parametrize(
    ("alias", "problem"),
    [("m=m2", "m is the name of a model"), ("gpt=other", "gpt: no engine serves other")],
)
async def test_a_reload_with_a_wrong_alias_changes_nothing(
    harness: Harness, alias: str, problem: str
) -> None:
    engine = await serving(harness, "m", "m2")
    router = await harness.router(engine, model_aliases=("gpt=m",))
    with pytest.raises(ValueError, match=problem):
        reload(router, model_aliases=(alias,))
    assert (await router.ask(COMPLETIONS, ASKED)).json["model"] == "gpt"


async def test_a_wrong_alias_ends_the_start(harness: Harness) -> None:
    engine = await serving(harness, "m")
    router = Router(Settings(decode=[engine.url], model_aliases=("gpt=other",), port=0))
    await router.engines.prober.probe_all()
    with pytest.raises(SettingsError, match="gpt: no engine serves other"):
        router.routing.check_names()
    await router._end()


async def test_a_name_that_engines_serve_later_stays_an_alias(harness: Harness) -> None:
    engine = await serving(harness, "m")
    router = await harness.router(engine, model_aliases=("gpt=m",))
    engine.models = json_reply({"object": "list", "data": [{"id": "m"}, {"id": "gpt"}]})
    await router.router.engines.prober.probe_all()
    client = await router.send(COMPLETIONS, orjson.dumps(ASKED))
    assert (await client.answer()).json["model"] == "gpt"
    assert chosen(router) == {("gpt", "m"): 1}
