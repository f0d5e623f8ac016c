"""A redirect of an engine is not followed: the router contacts no host that an engine names."""

import pytest

from tests.net.engine import json_reply
from tests.net.harness import Harness
from tests.net.payloads import CHAT, COMPLETIONS, EMBEDDINGS, completion

STATUSES = [301, 302, 303, 307, 308]


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, EMBEDDINGS])
async def test_a_redirect_is_neither_followed_nor_forwarded(
    harness: Harness, path: str, status: int
) -> None:
    engine, other = await harness.engine(), await harness.engine()
    router = await harness.router(engine)
    location = f"location: {other.url}{path}".encode()
    engine.answer_all(lambda call: call.send(json_reply({}, status, location)))
    answer = await router.ask(path, {**completion(), "messages": [], "input": "x"})
    assert answer.status == 502
    assert answer.values(b"location") == []  # it is an address of the engines' network
    assert not other.connections


async def test_a_prefill_engines_redirect_is_not_followed_either(harness: Harness) -> None:
    prefill, decode, other = [await harness.engine() for _ in range(3)]
    router = await harness.router(decode, prefill=(prefill,))
    location = f"location: {other.url}{COMPLETIONS}".encode()
    prefill.answer_all(lambda call: call.send(json_reply({}, 307, location)))
    decode.answer_all(lambda call: call.send(json_reply({"choices": []})))
    await router.ask(COMPLETIONS, completion())
    assert not other.connections


@pytest.mark.parametrize("status", [302, 307])
async def test_probes_follow_none(harness: Harness, status: int) -> None:
    engine, other = await harness.engine(), await harness.engine()
    location = f"location: {other.url}/health".encode()
    engine.health = engine.models = engine.metrics = engine.prometheus = json_reply(
        {}, status, location
    )
    router = await harness.router(engine, ready=False)  # it has probed all when it listens
    await router.router.engines.prober._scrape(router.endpoint(engine), None)
    assert engine.probes
    assert not other.connections
