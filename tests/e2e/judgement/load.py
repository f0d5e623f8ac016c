"""An open-loop load: requests are sent at their times, independent of the end of others."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any

import aiohttp

from tests.e2e.judgement.engine import REQUEST_ID

__all__ = ["Body", "Load", "Request", "prompt_of"]

PATIENCE_S = 100.0
"""For one whole answer. Only a router that loses requests meets it."""

ERROR = b'"error":'

Body = Callable[[int], Mapping[str, Any]]
"""What the n-th request of a load asks beyond the usual."""


@dataclass(slots=True)
class Request:
    """One request as its client saw it. Times are those of the event loop, in seconds."""

    number: int
    body: Mapping[str, Any]
    sent_at: float
    ended_at: float | None = None
    status: int = 0
    error: str | None = None
    """What was wrong with the answer; None for a whole one and for one that is not over."""


def prompt_of(number: int, tokens: int) -> str:
    """A prompt of so many tokens (four characters each) that shares no prefix with another one."""
    return f"{number:08d}" + "abcdefgh" * (tokens // 2 - 1)


class Load:
    """`count` streams at `rate` per second on the average, with the gaps of a Poisson process.

    With `most_open` it waits while so many are open: a load that no machine is too slow to make.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        requests: list[Request],
        target: Callable[[], str],
        *,
        count: int,
        rate: float,
        tokens: int = 12,
        body: Body = lambda _: {},
        most_open: int = 1 << 20,
        seed: int = 1,
    ) -> None:
        """`requests` is where all loads of a cluster number theirs; `target` gives a router."""
        self.requests: list[Request] = []
        self._session = session
        self._all = requests
        self._target = target
        self._count, self._rate = count, rate
        self._usual = {"model": "m", "max_tokens": tokens, "ignore_eos": True, "stream": True}
        self._body = body
        self._places = asyncio.Semaphore(most_open)
        self._random = Random(seed)
        self._task = asyncio.create_task(self._run())

    @property
    def sent(self) -> int:
        """Requests sent so far."""
        return len(self.requests)

    async def done(self) -> list[Request]:
        """Wait until all is sent and answered."""
        await self._task
        return self.requests

    async def stop(self) -> list[Request]:
        """Send no more, and wait for the answers to what was sent."""
        self._count = 0
        return await self.done()

    async def close(self) -> None:
        """Send no more, and disconnect the open requests."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        async with asyncio.TaskGroup() as group:
            place = 0
            while place < self._count:
                due += self._random.expovariate(self._rate)
                # On a busy machine late requests are not made up for in a burst.
                due = max(due, loop.time() - 0.1)
                await asyncio.sleep(due - loop.time())
                await self._places.acquire()
                number = len(self._all)
                body = {**self._usual, "prompt": prompt_of(number, 16), **self._body(place)}
                request = Request(number, body, loop.time())
                self._all.append(request)
                self.requests.append(request)
                group.create_task(self._ask(request))
                place += 1

    async def _ask(self, request: Request) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._read(request)
        except TimeoutError:
            request.error = "no answer"
        except aiohttp.ClientError as error:
            request.error = f"{type(error).__name__}: {error}"
        request.ended_at = loop.time()
        self._places.release()
        # A long prompt is most of a request, and thousands of them are kept.
        request.body = {key: value for key, value in request.body.items() if key != "prompt"}

    async def _read(self, request: Request) -> None:
        headers = {"x-request-id": REQUEST_ID % request.number}
        url = f"{self._target()}/v1/completions"
        async with self._session.post(url, json=request.body, headers=headers) as response:
            request.status = response.status
            answer = await response.read()
        if request.status != 200:
            request.error = f"status {request.status}: {answer[:200]!r}"
        elif request.body["stream"] and not answer.endswith(b"data: [DONE]\n\n"):
            request.error = f"cut off: {answer[-80:]!r}"
        elif ERROR in answer:
            request.error = f"error event: {answer[answer.index(ERROR) :][:200]!r}"
