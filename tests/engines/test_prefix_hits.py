"""Claims: a simulated engine finds in its prefix cache what a real one finds for the same requests,
also when both have to evict; and so does the engine of `pd-router simulate`.

One engine of 8192 tokens. Prompts are token ids, so that all three see the same blocks; a chat goes
on with what its own engine has answered, which is as long everywhere. All loads go to the same
engines, so that each begins with what the one before it has left.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from random import Random
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.engines import lab, observe
from tests.engines.cache_traffic import LOADS, Turn, turns, waves
from tests.engines.fleet import MODEL, SMALL_SPEC, service
from tests.engines.layout import LabError, layout
from tests.engines.service import Service
from tests.engines.simulated import ModelledEngine, simulated
from tests.engines.traffic import COMPLETIONS

BLOCKS = SMALL_SPEC.blocks - 1
"""One of vLLM's blocks is its null block."""
ENDLESS = 1_000_000
AT_ONCE = 6
MOST_APART = 0.02


@pytest.fixture(scope="module")
def real() -> Iterator[Service]:
    """The real engine, with an empty cache."""
    where = layout()
    engine = service(SMALL_SPEC, where)
    engine.stop()
    try:
        lab.start(where, [engine])
    except LabError as error:
        pytest.fail(str(error), pytrace=False)
    yield engine
    engine.stop()


@pytest.fixture(scope="module")
def model() -> Iterator[Service]:
    """The simulated engine."""
    engine = simulated(BLOCKS, layout())
    engine.start()
    engine.wait_ready(60)
    yield engine
    engine.stop()


@pytest.fixture(scope="module")
def virtual() -> ModelledEngine:
    """The engine in virtual time."""
    return ModelledEngine(BLOCKS)


@pytest.fixture(scope="module")
def endless() -> ModelledEngine:
    """An engine that never evicts."""
    return ModelledEngine(ENDLESS)


@pytest.fixture
async def _whole_fleet() -> None:
    """These tests have engines of their own."""


class Client:
    """Sends turns to an engine and keeps its chats."""

    def __init__(self, session: aiohttp.ClientSession, engine: Service) -> None:
        self.session = session
        self.engine = engine
        self.queries = 0
        self._chats: dict[str, list[int]] = {}

    async def ask(self, turn: Turn) -> int:
        """Send a turn; returns the prompt's tokens that were cached."""
        prompt = [*self._chats.get(turn.chat, ()), *turn.tokens]
        body = {
            "model": MODEL, "prompt": prompt, "temperature": 0, "return_token_ids": True,
            "max_tokens": turn.answer, "min_tokens": turn.answer, "ignore_eos": True,
        }  # fmt: skip
        async with self.session.post(self.engine.url + COMPLETIONS, json=body) as response:
            document: dict[str, Any] = await response.json()
        assert response.status == 200, document
        usage, answer = document["usage"], document["choices"][0]["token_ids"]
        assert (usage["prompt_tokens"], len(answer)) == (len(prompt), turn.answer)
        self.queries += len(prompt)
        self._chats[turn.chat] = prompt + answer
        return int((usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0)

    async def counted(self) -> tuple[int, int]:
        """The engine's own counts of prompt tokens: looked up, and found."""
        async with self.session.get(f"{self.engine.url}/metrics") as response:
            families = text_string_to_metric_families(await response.text())
        values = {each.name: each.value for family in families for each in family.samples}
        names = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")
        return int(values[names[0]]), int(values[names[1]])


class VirtualClient:
    """The same for an engine in virtual time, whose answers have no tokens of their own."""

    def __init__(self, engine: ModelledEngine) -> None:
        self._engine = engine
        self._chance = Random(0)
        self._chats: defaultdict[str, list[int]] = defaultdict(list)

    def ask(self, wave: list[Turn]) -> list[int]:
        """Send turns at once; returns the tokens of each that were cached."""
        requests = []
        for turn in wave:
            prompt = [*self._chats[turn.chat], *turn.tokens]
            answer = [self._chance.randrange(1000, 2000) for _ in range(turn.answer)]
            self._chats[turn.chat] = prompt + answer
            requests.append((prompt, answer))
        return self._engine.answer(requests)


@pytest.mark.parametrize("load", LOADS)
async def test_each_request_finds_the_same_in_a_simulated_engine(
    session: aiohttp.ClientSession,
    real: Service,
    model: Service,
    virtual: ModelledEngine,
    endless: ModelledEngine,
    load: str,
) -> None:
    found: dict[str, list[int]] = {}
    for engine in (real, model):
        client = Client(session, engine)
        queries, hits = await client.counted()
        found[engine.name] = [await client.ask(turn) for turn in turns(load)]
        # A real engine's counters follow its answers.
        expected = (queries + client.queries, hits + sum(found[engine.name]))
        await observe.eventually(client.counted, expected.__eq__, within=10)
    for name, modelled in (("virtual", virtual), ("endless", endless)):
        ask = VirtualClient(modelled).ask
        found[name] = [cached for turn in turns(load) for cached in ask([turn])]
    print(
        f"{load}: {len(turns(load))} requests,", {name: sum(all_) for name, all_ in found.items()}
    )
    assert found[model.name] == found[real.name]
    assert found["virtual"] == found[real.name]
    assert load == "unshared" or sum(found[real.name]) < 0.9 * sum(found["endless"])


async def test_requests_at_once_find_as_much_in_a_simulated_engine(
    session: aiohttp.ClientSession, real: Service, model: Service, virtual: ModelledEngine
) -> None:
    found = {}
    for engine in (real, model):
        client = Client(session, engine)
        found[engine.name] = [
            cached
            for wave in waves(AT_ONCE)
            for cached in await asyncio.gather(*map(client.ask, wave))
        ]
    ask = VirtualClient(virtual).ask
    found["virtual"] = [cached for wave in waves(AT_ONCE) for cached in ask(wave)]
    sums = {name: sum(all_) for name, all_ in found.items()}
    print(f"{AT_ONCE} at once: {len(found['virtual'])} requests,", sums)
    measured = sums.pop(real.name)
    assert measured > 10_000
    for name, each in sums.items():
        assert abs(each - measured) <= MOST_APART * measured, name
