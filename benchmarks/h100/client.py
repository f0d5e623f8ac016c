"""Streams with the time of each token, straight from an engine or through the router."""

import asyncio
import itertools
import random
import statistics
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

__all__ = ["Client", "Stream", "ids", "milliseconds"]

FIRST_ID = 300
"""Below are special tokens and single bytes."""


def ids(seed: int, count: int) -> list[int]:
    """A prompt of so many tokens that no other seed has."""
    return random.Random(seed).choices(range(FIRST_ID, 4096), k=count)


def milliseconds(seconds: Sequence[float], share: float) -> float | None:
    """A percentile by nearest rank; None of nothing."""
    if not seconds:
        return None
    ordered = sorted(seconds)
    return round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)


@dataclass(slots=True)
class Stream:
    """One streamed answer; times are of time.monotonic."""

    sent: float = 0.0
    times: list[float] = field(default_factory=list)
    engine: str | None = None
    left: str | None = None
    finish: str | None = None
    error: str | None = None

    @property
    def ttft(self) -> float:
        """Seconds to the first token; infinite without one."""
        return self.times[0] - self.sent if self.times else float("inf")

    @property
    def gaps(self) -> list[float]:
        """Seconds between tokens."""
        return [after - before for before, after in itertools.pairwise(self.times)]

    @property
    def step(self) -> float:
        """Seconds per token behind the first, in the middle of the answer."""
        return statistics.median(self.gaps)


class Client:
    """Requests for completions of a model at a URL."""

    def __init__(self, session: aiohttp.ClientSession, url: str, model: str) -> None:
        self._session, self._url, self._model = session, url, model

    def _body(self, prompt: Sequence[int], tokens: int) -> dict[str, Any]:
        return {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            # No prefix cache has it, so that every prompt is computed or transferred.
            "cache_salt": random.randbytes(8).hex(),
        }

    async def stream(
        self,
        prompt: Sequence[int],
        tokens: int,
        into: Stream | None = None,
        begun: asyncio.Event | None = None,
    ) -> Stream:
        """Never raises for an answer that fails: it is its `error`. `into` grows meanwhile; `begun`
        is set with the first token, or at the end."""
        body = self._body(prompt, tokens) | {"stream": True}
        seen = Stream() if into is None else into
        seen.sent = time.monotonic()
        try:
            async with self._session.post(f"{self._url}/v1/completions", json=body) as answer:
                seen.engine = answer.headers.get("x-pd-router-endpoint")
                if answer.status != 200:
                    seen.error = f"{answer.status} {(await answer.text())[:200]}"
                async for line in answer.content:
                    if self._read(seen, line) and begun is not None:
                        begun.set()
        except (aiohttp.ClientError, OSError) as error:
            seen.error = f"{type(error).__name__} {error}"
        if begun is not None:
            begun.set()
        return seen

    @staticmethod
    def _read(seen: Stream, line: bytes) -> bool:
        """Whether the line has a token."""
        if seen.error or not line.startswith(b"data: {"):
            return False
        event = orjson.loads(line[6:])
        if "error" in event:
            seen.error = str(event["error"])[:200]
            return False
        found = False
        for choice in event.get("choices", ()):
            seen.finish = choice.get("finish_reason") or seen.finish
            if found := bool(choice.get("text")):
                seen.times.append(time.monotonic())
        return found

    async def streams(self, prompts: Iterable[Sequence[int]], tokens: int) -> list[Stream]:
        """All at once."""
        return await asyncio.gather(*(self.stream(each, tokens) for each in prompts))

    async def tokens(self, prompt: Sequence[int], count: int) -> list[int]:
        """The ids of a greedy answer. Raises RuntimeError."""
        body = self._body(prompt, count) | {"return_token_ids": True}
        async with self._session.post(f"{self._url}/v1/completions", json=body) as answer:
            text = await answer.text()
        if answer.status != 200:
            raise RuntimeError(f"{self._url}: {answer.status} {text[:200]}")
        found: list[int] = orjson.loads(text)["choices"][0]["token_ids"]
        return found

    async def metrics(self) -> str:
        """The text of /metrics."""
        async with self._session.get(f"{self._url}/metrics") as answer:
            return await answer.text()


@asynccontextmanager
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """Without limits on connections and time: a run has its own."""
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as made:
        yield made
