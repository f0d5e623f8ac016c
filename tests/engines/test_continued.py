"""Claim: no client notices a decode engine that is killed, stopped, shut down, paused or drained
under its stream, nor one whose core alone is killed or stopped.

Greedy answers of these engines are the same in every run, so the answer of a stream that went on
with another engine is compared with an undisturbed one: text, finish reason, usage.
"""

import asyncio
import itertools
import os
import re
import signal
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from benchmarks.system.ports import free_port
from tests.engines import observe, processes
from tests.engines.conftest import Engines, fleet_of, router_of, started
from tests.engines.fleet import INTERVAL_SPECS, SPECS, service
from tests.engines.layout import layout
from tests.engines.service import Service
from tests.engines.traffic import CHAT, COMPLETIONS, LONG_PROMPTS, SHORT_PROMPTS, body, events

TOKENS = 1000
OUTCOME = re.compile(r"continuation=(\w+)")
NO_SPECIAL = {"0": -100, "1": -100, "2": -100}
"""Engines leave the text of special tokens out, and decode it on request."""
JSON = {"type": "json_object"}
NO_END = {"1023": -100}
"""The reasoning has no end: behind it a grammar would start, and such a stream is not continued."""
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
BEGUN_BYTES = 8000
"""Some thirty tokens' events."""


@pytest.fixture(scope="module")
def admin() -> str:
    """The admin URL of the router."""
    return f"http://127.0.0.1:{free_port()}"


@pytest.fixture(scope="module", params=[SPECS, INTERVAL_SPECS], ids=["one token", "four tokens"])
def engines(request: pytest.FixtureRequest) -> Iterator[Engines]:
    """Engines whose events have one token each, or several."""
    where = layout()
    yield from fleet_of([service(spec, where) for spec in request.param])


@pytest.fixture(scope="module")
def continuing(engines: Engines, admin: str) -> Iterator[Service]:
    """A router with --stream-continuation on."""
    options = ("--stream-continuation", "on", "--admin-port", admin.rpartition(":")[2])
    yield from started(router_of(engines, layout(), *options, name="continuing"))


Answer = dict[str, Any]


def read(raw: bytes) -> Answer:
    """What a client reads of a stream."""
    documents = list(events(raw))
    choices = [choice for each in documents for choice in each.get("choices", ())]
    deltas = [choice.get("delta", choice) for choice in choices]
    usage = documents[-1].get("usage") or {}
    return {
        "error": [each["error"] for each in documents if "error" in each],
        "text": "".join(d.get("content") or d.get("text") or "" for d in deltas),
        "reasoning": "".join(d.get("reasoning") or "" for d in deltas),
        "roles": sum("role" in delta for delta in deltas),
        "finish": [
            (c["finish_reason"], c.get("stop_reason")) for c in choices if c["finish_reason"]
        ],
        "usage": [usage.get(name) for name in ("prompt_tokens", "completion_tokens")],
        "ids": len({each["id"] for each in documents if "id" in each}),
        "token_ids": any(choice.get("token_ids") for choice in choices),
    }


@dataclass(frozen=True)
class Question:
    """A request for a stream. `more`: further members of its body, as JSON."""

    path: str
    text: str
    more: bytes = b"{}"

    @property
    def body(self) -> dict[str, Any]:
        """Without token ids, which the router asks for by itself."""
        request = body(self.path, self.text, stream=True, max_tokens=TOKENS)
        del request["return_token_ids"]
        request["stream_options"] = {"include_usage": True}
        request.update(orjson.loads(self.more))
        return request

    def asking(self, **more: Any) -> "Question":
        return replace(self, more=orjson.dumps(more))


async def parts(
    session: aiohttp.ClientSession, url: str, question: Question
) -> AsyncIterator[bytes]:
    async with session.post(url + question.path, json=question.body) as response:
        assert response.status == 200
        async for part in response.content.iter_any():
            yield part


class Stream:
    """A stream in progress."""

    def __init__(self, source: AsyncIterator[bytes]) -> None:
        self.raw = b""
        self.whole = asyncio.create_task(self._read(source))

    async def _read(self, source: AsyncIterator[bytes]) -> Answer:
        async for part in source:
            self.raw += part
        return read(self.raw)


def core(engine: Service) -> int:
    """The id of the process that computes; the engine's other one serves HTTP."""
    assert engine.process is not None, "it runs"
    ids = processes.members(engine.process.pid)
    (found,) = [pid for pid in ids if b"EngineCore" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return found


def post(url: str, body: bytes = b"") -> None:
    """Ask for what has no answer worth reading."""
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=20):
        pass


@dataclass(frozen=True)
class Fault:
    """Begins and ends with the engine and the admin URL of its router."""

    begin: Callable[[Service, str], object]
    end: Callable[[Service, str], object] = lambda engine, admin: None


async def up(session: aiohttp.ClientSession, admin: str) -> set[str]:
    """The engines that are ready."""
    async with session.get(admin + "/endpoints") as response:
        return {each["url"] for each in await response.json() if each["state"] == "up"}


def order(engine: Service, admin: str, name: str, **more: bool) -> None:
    """Give an operator's order on the engine."""
    post(f"{admin}/admin/engines/{name}", orjson.dumps({"url": engine.url} | more))


FAULTS = {
    "killed": Fault(lambda engine, admin: engine.kill()),
    "frozen": Fault(lambda engine, admin: engine.freeze()),
    "shut down": Fault(lambda engine, admin: engine.stop()),
    "core killed": Fault(
        lambda engine, admin: os.kill(core(engine), signal.SIGKILL),
        lambda engine, admin: engine.stop(),
    ),
    "core frozen": Fault(lambda engine, admin: os.kill(core(engine), signal.SIGSTOP)),
    "paused": Fault(
        lambda engine, admin: post(engine.url + "/pause?mode=abort"),
        lambda engine, admin: post(engine.url + "/resume"),
    ),
    "drained": Fault(
        lambda engine, admin: order(engine, admin, "drain", move=True),
        lambda engine, admin: order(engine, admin, "undrain"),
    ),
}


async def answered(url: str, questions: Iterable[Question]) -> dict[Question, Answer]:
    """Their answers by one engine."""
    async with aiohttp.ClientSession() as session:
        streams = {each: Stream(parts(session, url, each)) for each in questions}
        return {question: await stream.whole for question, stream in streams.items()}


@pytest.fixture(scope="module")
def undisturbed(engines: Engines) -> dict[Question, Answer]:
    """Prefilled remotely or not, of either API. Some have stop strings, of which one occurs in the
    second half of the answer; a grammar, if the answer is reasoning; or tools."""
    texts = [*LONG_PROMPTS[:6], *SHORT_PROMPTS[:6]]
    plain = [Question(*each) for each in zip(itertools.cycle((CHAT, COMPLETIONS)), texts)]
    url = engines.decodes[0].url
    found = asyncio.run(answered(url, [each.asking(logit_bias=NO_SPECIAL) for each in plain[:4]]))
    special = []
    for question, answer in found.items():
        if answer["reasoning"]:
            special.append(question.asking(response_format=JSON, logit_bias=NO_END))
            continue
        text = answer["text"]
        ends = (text[place : place + 20] for place in range(len(text) * 2 // 3, len(text)))
        end = next(each for each in ends if text.find(each) > len(text) // 2)
        stop = [end, "a string that no answer has"]
        special.append(question.asking(stop=stop, ignore_eos=False, logit_bias=NO_SPECIAL))
    tools = [each.asking(tools=[TOOL]) for each in plain[4:5]]
    return asyncio.run(answered(url, [*special, *tools, *plain[5:]]))


@pytest.mark.parametrize("how", FAULTS)
async def test_each_stream_is_whole_and_equal_to_an_undisturbed_one(
    session: aiohttp.ClientSession,
    engines: Engines,
    continuing: Service,
    undisturbed: dict[Question, Answer],
    admin: str,
    how: str,
) -> None:
    fault = FAULTS[how]
    await observe.eventually(
        lambda: up(session, admin),
        lambda seen: seen == {engine.url for engine in engines.all},
        within=20,
    )
    streams = [Stream(parts(session, continuing.url, each)) for each in undisturbed]
    await observe.eventually(
        lambda: asyncio.sleep(0, [len(each.raw) for each in streams]),
        lambda sizes: min(sizes) > BEGUN_BYTES,
        within=60,
    )
    loads = await observe.loads(session, engines.decodes)
    victim = max(zip(loads, engines.decodes, strict=True), key=lambda each: each[0].running)[1]
    before = continuing.log.stat().st_size
    await asyncio.to_thread(fault.begin, victim, admin)
    answers = await asyncio.gather(*(each.whole for each in streams))
    await asyncio.to_thread(fault.end, victim, admin)
    for got, expected in zip(answers, undisturbed.values(), strict=True):
        assert got == expected

    def outcomes() -> list[str]:
        return OUTCOME.findall(continuing.log.read_bytes()[before:].decode())

    await observe.eventually(  # the router writes its log once a second
        lambda: asyncio.to_thread(outcomes),
        # An engine that has just been started again may be slow, so that its streams leave it.
        lambda seen: "continued" in seen or "moved" in seen,
        within=10,
    )
