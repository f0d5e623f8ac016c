"""Engines end, stop or are drained under many streams, and each client gets one whole answer."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from itertools import cycle
from typing import Any, NamedTuple

import orjson
import pytest

from router.simulator import serve_engine
from tests.e2e.process import Process, serving
from tests.e2e.test_membership import Admin
from tests.e2e.worker_processes import until
from tests.net.client import Answer, Client, request
from tests.net.harness import eventually
from tests.net.payloads import CHAT, COMPLETIONS, DONE
from tests.ports import own_port
from tests.simulated import Engine

STREAMS = 24
TOKENS = 160
"""Of an answer: some end before, by themselves, and each has characters of two tokens."""

SECRET = "the prompt that no answer may repeat"


class Shown(NamedTuple):
    """What a client has read of a stream."""

    text: str
    finish: str
    usage: dict[str, int]


def asked(number: int) -> tuple[str, dict[str, Any]]:
    """Chats and completions by turns."""
    text = f"{SECRET} {number}"
    body: dict[str, Any] = {"model": "sim", "max_tokens": TOKENS, "stream": True}
    body["stream_options"] = {"include_usage": True}
    if number % 2:
        return CHAT, {**body, "messages": [{"role": "user", "content": text}]}
    return COMPLETIONS, {**body, "prompt": text}


def shown(answer: Answer) -> Shown:
    """Asserts that it is the answer of one engine."""
    assert answer.status == 200
    assert answer.body.endswith(DONE), answer.body[-300:]
    assert answer.body.count(DONE) == 1
    documents = [orjson.loads(event[6:]) for event in answer.body.split(b"\n\n")[:-2]]
    assert len({(each["id"], each["created"]) for each in documents}) == 1
    *chunks, usage = documents
    choices = [chunk["choices"][0] for chunk in chunks]
    deltas = [choice.get("delta", choice) for choice in choices]
    assert sum("role" in delta for delta in deltas) <= 1
    assert not any(choice.get("token_ids") for choice in choices)
    text = "".join(delta.get("content") or delta.get("text") or "" for delta in deltas)
    finished = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    assert len(finished) == 1
    return Shown(text, finished[0], usage["usage"])


async def undisturbed() -> list[Shown]:
    """What an engine alone answers."""
    async with serve_engine() as engine:
        client = await Client.open(int(engine.url.rpartition(":")[2]))
        answers = [shown(await client.ask(*asked(number))) for number in range(STREAMS)]
        client.leave()
    return answers


async def kill(engine: Engine) -> None:
    await engine.kill()


async def terminate(engine: Engine) -> None:
    engine.signal(signal.SIGTERM)


async def stop(engine: Engine) -> None:
    engine.signal(signal.SIGSTOP)


async def send_to_sleep(engine: Engine) -> None:
    client = await Client.open(engine.port)
    assert (await client.ask("/sleep", {})).status == 200
    client.leave()


async def started(stack: AsyncExitStack, step_ms: int, *more: str) -> tuple[list[Engine], Process]:
    """Three engines and a router."""
    engines = [Engine(own_port(), "--step-ms", str(step_ms)) for _ in range(3)]
    for engine in engines:
        stack.push_async_callback(engine.kill)
        await engine.start()
    urls = ",".join(engine.url for engine in engines)
    flags = ("--stream-continuation", "on", "--admin-port", "0", *more)
    router = await stack.enter_async_context(serving("--decode", urls, *flags))
    await router.ready()
    return engines, router


async def test_no_client_notices_a_rolling_restart() -> None:
    expected = await undisturbed()
    async with AsyncExitStack() as stack:
        engines, router = await started(stack, 50, "--workers", "2")
        admin = Admin((await router.until("listening"))["admin_url"])
        answers = []
        for number in range(STREAMS):
            client = await router.client()
            await client.send(request(*asked(number)))
            answers.append(asyncio.create_task(client.answer()))
        for engine in engines:
            await admin.order("/drain", engine.url, move=True)
            await until(partial(admin.is_idle, engine.url), "its streams have moved")
            await engine.kill()
            await engine.start()
            await admin.order("/undrain", engine.url)
            await admin.all_up([each.url for each in engines])
        whole = await asyncio.gather(*answers)
    assert [shown(answer) for answer in whole] == expected
    fallbacks = {str(r["fallbacks"]) for r in router.records if r.get("fallbacks")}
    assert any("moved" in each for each in fallbacks)
    assert not any("continued" in each for each in fallbacks)


@pytest.mark.parametrize("end", [kill, terminate, stop, send_to_sleep])
async def test_no_client_notices_the_end_of_an_engine(
    end: Callable[[Engine], Awaitable[None]],
) -> None:
    expected = await undisturbed()
    assert len({answer.finish for answer in expected}) == 2
    async with AsyncExitStack() as stack:
        engines, router = await started(stack, 10)
        answers = []
        for number in range(STREAMS):
            client = await router.client()
            await client.send(request(*asked(number)))
            answers.append(await client.begin())
        # At different places in each answer.
        for answer, events in zip(answers, cycle(range(1, 60, 7))):
            while not answer.is_over and answer.body.count(b"\n\n") < events:
                await answer.more()
        await end(engines[0])
        whole = await asyncio.gather(*(answer.rest() for answer in answers))
        # Some were on that engine; its log lines may come late.
        await eventually(lambda: any("continued" in str(each) for each in router.records))
    assert [shown(answer) for answer in whole] == expected
    assert not any(SECRET.encode() in answer.body for answer in whole)
