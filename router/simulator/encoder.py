"""An engine's encoder, and the cache that engines share: a folder with an empty file for each
embedding, where ECExampleConnector has its tensors (example_connector.py of vLLM 0.32).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson

from router.core.wire.media import media_tokens
from router.simulator.config import EngineConfig


def media_of(body: Mapping[str, Any]) -> Iterator[str]:
    """A hash of each image, recording and video of a request, in order."""
    items = body.get("messages") or body.get("input")
    for item in items if isinstance(items, list) else ():
        content = item.get("content") if isinstance(item, dict) else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and media_tokens(part):
                yield sha256(orjson.dumps(part, option=orjson.OPT_SORT_KEYS)).hexdigest()


class Encoder:
    """Encodes one item at a time. `encoded` and `found` count items that it made, and that it took
    from the shared cache."""

    def __init__(self, config: EngineConfig) -> None:
        self.encoded = self.found = 0
        self._seconds = config.encode_s
        self._is_producer = config.role == "encode"
        self._shared = None if config.encoder_cache is None else Path(config.encoder_cache)
        self._own: set[str] = set()
        self._turn = asyncio.Lock()

    async def encode(
        self, body: Mapping[str, Any], wait: Callable[[float], Awaitable[None]]
    ) -> dict[str, Any]:
        """Encode what a request holds, except what is cached. Returns its `ec_transfer_params`.
        `wait` lets time pass, or raises if the client leaves."""
        params: dict[str, Any] = {}
        for place, name in enumerate(media_of(body)):
            async with self._turn:
                await self._take(name, wait)
            params.setdefault(name, {"item_indices": [], "metadata": {}})
            params[name]["item_indices"].append(place)
        return params

    async def _take(self, name: str, wait: Callable[[float], Awaitable[None]]) -> None:
        if name in self._own:
            return
        if self._shared is not None and (self._shared / name).exists():
            self.found += 1
        else:
            if self._seconds:
                await wait(self._seconds)
            self.encoded += 1
            if self._is_producer and self._shared is not None:
                (self._shared / name).touch()
        self._own.add(name)
