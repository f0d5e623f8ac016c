"""The clients of a load: chats that continue with the engines' own answers."""

import asyncio
import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import aiohttp

from benchmarks.prefix.loads import Load, Session

CHAT = "/v1/chat/completions"
CONTENT = re.compile(rb'"content":"((?:[^"\\]|\\.)+)"')
TIMEOUT_S = 120.0


@dataclass(slots=True)
class Outcome:
    """What came of all requests. Seconds."""

    first: list[float] = field(default_factory=list)
    """To the first token, of the successes."""
    whole: list[float] = field(default_factory=list)
    failed: int = 0
    seconds: float = 0.0
    """From the first request to the last answer."""


class Clients:
    """All clients; each asks the routers in an order that the load's place gives, not chance."""

    def __init__(self, load: Load, routers: Sequence[str], *, wants_ids: bool) -> None:
        self._load = load
        self._routers = routers
        self._wants_ids = wants_ids
        self._outcome = Outcome()

    async def run(self) -> Outcome:
        """The whole load."""
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
            began = time.monotonic()
            async with asyncio.TaskGroup() as group:
                for number, session in enumerate(self._load.sessions):
                    group.create_task(self._session(http, session, began, number))
            self._outcome.seconds = time.monotonic() - began
        return self._outcome

    async def _session(
        self, http: aiohttp.ClientSession, session: Session, began: float, number: int
    ) -> None:
        chance = random.Random(number)
        messages: list[dict[str, str]] = []
        await asyncio.sleep(max(0.0, began + session.at - time.monotonic()))
        for turn in session.turns:
            await asyncio.sleep(turn.pause)
            messages.append({"role": "user", "content": turn.said})
            body = {
                "model": "sim", "messages": messages, "stream": True, "ignore_eos": True,
                "max_tokens": turn.output, "stream_options": {"include_usage": True},
            }  # fmt: skip
            if self._wants_ids:
                body["return_token_ids"] = True
            answer = await self._ask(http, chance.choice(self._routers) + CHAT, body)
            messages.append({"role": "assistant", "content": answer})

    async def _ask(self, http: aiohttp.ClientSession, url: str, body: object) -> str:
        """The answer's text; empty where there is none."""
        began, first, data = time.monotonic(), None, bytearray()
        try:
            async with http.post(url, json=body) as response:
                async for piece in response.content.iter_any():
                    data += piece
                    if first is None and CONTENT.search(piece):
                        first = time.monotonic() - began
                is_good = response.status == 200 and b"[DONE]" in data and first is not None
        except (aiohttp.ClientError, TimeoutError):
            is_good = False
        if not is_good or first is None:
            self._outcome.failed += 1
            return ""
        self._outcome.first.append(first)
        self._outcome.whole.append(time.monotonic() - began)
        return b"".join(CONTENT.findall(data)).decode()
