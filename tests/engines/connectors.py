"""A pair of real engines for each connector, with a router before them."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from tests.engines import observe
from tests.engines.conftest import Engines, fleet_of, router_of, started
from tests.engines.fleet import (
    BLOCK_SIZE,
    MOONCAKE_SECONDS,
    MOONCAKE_SPECS,
    MORIIO_SPECS,
    MULTI_SPECS,
    PUSH_SPECS,
    SPECS,
    STORE_SPECS,
    EngineSpec,
    service,
    store_of,
)
from tests.engines.layout import layout
from tests.engines.service import Service
from tests.engines.traffic import ask, body

__all__ = ["CONNECTORS", "Connector", "Pair", "empty", "pair_of", "stored"]


@dataclass(frozen=True)
class Connector:
    """What the engines and the router of a connector need."""

    specs: tuple[EngineSpec, ...]
    flags: tuple[str, ...] = ()
    lease_seconds: float = 30
    """For which a prefill engine keeps blocks that no decode engine asks for."""
    has_store: bool = False
    """Whether the engines share a folder, which keeps a prompt whatever its `cache_salt`."""
    is_exact: bool = True
    """Whether all tokens of a prompt are moved, not only whole blocks."""
    finds_again: bool = True
    """Whether prefill engines find a decode engine again that has restarted."""


CONNECTORS = {
    "nixl": Connector(SPECS[:2]),
    "push": Connector(PUSH_SPECS),
    "mooncake": Connector(
        MOONCAKE_SPECS,
        (
            *("--disagg-connector-type", "mooncake"),
            *("--mooncake-bootstrap-port", str(MOONCAKE_SPECS[0].side_channel)),
        ),
        MOONCAKE_SECONDS,
    ),
    "moriio": Connector(
        MORIIO_SPECS[:2],
        (
            *("--disagg-connector-type", "moriio"),
            *("--moriio-handshake-port", str(MORIIO_SPECS[1].more["handshake_port"])),
            *("--moriio-notify-port", str(MORIIO_SPECS[1].more["notify_port"])),
        ),
        finds_again=False,
    ),
    "store": Connector(
        STORE_SPECS, ("--disagg-connector-type", "store"), has_store=True, is_exact=False
    ),
    "multi": Connector(MULTI_SPECS, has_store=True),
}


@dataclass(frozen=True)
class Pair:
    """A prefill engine, a decode engine, and their router."""

    connector: Connector
    engines: Engines
    router: Service
    store: Path
    """Empty, unless the connector has one."""

    @property
    def alone(self) -> Service:
        """The engine whose own answers are the right ones."""
        return self.engines.decodes[0]

    def moved_of(self, prompt_tokens: int) -> int:
        """How many tokens of a prompt the decode engine loads."""
        return prompt_tokens if self.connector.is_exact else stored(prompt_tokens)

    async def compare(
        self, session: aiohttp.ClientSession, path: str, text: str, **more: Any
    ) -> None:
        """Ask one engine and the router: equal answers, and the prompt is computed once."""
        empty(self.store)
        alone = await ask(session, self.alone.url, path, body(path, text, **more))
        empty(self.store)
        before = await observe.loads(session, self.engines.all)
        routed = await ask(session, self.router.url, path, body(path, text, **more))
        after = await observe.settled(session, self.engines.all, within=5)
        assert routed.status == alone.status == 200
        assert routed.words == alone.words, text
        length = routed.prompt_tokens
        assert length == alone.prompt_tokens > 2 * BLOCK_SIZE
        moved = self.moved_of(length)
        computed = [now.computed - then.computed for then, now in zip(before, after, strict=True)]
        assert computed == [length, length - moved]
        assert after[1].transferred - before[1].transferred == moved

    async def is_up(self, session: aiohttp.ClientSession) -> None:
        """Wait until the router uses both engines."""
        urls = {engine.url for engine in self.engines.all}
        await observe.eventually(
            lambda: observe.up(session, self.router), lambda seen: seen == urls, within=10
        )


@contextmanager
def pair_of(name: str) -> Iterator[Pair]:
    """The pair of a connector, running."""
    connector, where = CONNECTORS[name], layout()
    store = store_of(where)
    shutil.rmtree(store, ignore_errors=True)
    store.mkdir(parents=True)
    for engines in fleet_of([service(spec, where) for spec in connector.specs]):
        for router in started(router_of(engines, where, *connector.flags, name=f"{name}-router")):
            yield Pair(connector, engines, router, store)
    shutil.rmtree(store)


def empty(store: Path) -> None:
    """Forget all prompts."""
    for each in store.iterdir():
        shutil.rmtree(each)


def stored(prompt_tokens: int) -> int:
    """Tokens that ExampleConnector loads. A prompt that is one token longer than its blocks is kept
    under another name than it is looked for."""
    kept, wanted = ((prompt_tokens - less) // BLOCK_SIZE * BLOCK_SIZE for less in (1, 2))
    return wanted if wanted == kept else 0
