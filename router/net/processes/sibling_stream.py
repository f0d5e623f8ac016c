"""Tells one sibling replica, in requests whose bodies last for seconds: a line for each report.

A request for each report would cost either side several times as much. A sibling that reads slowly
is told the latest report, and the latest of the prompts, not all of them.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from random import Random
from typing import Final

import aiohttp
import orjson

from router.net.tls_files import TLSFiles

__all__ = ["PEERS_PATH", "SiblingStream"]

log = logging.getLogger(__name__)

PEERS_PATH: Final = "/admin/peers"

STREAM_SECONDS: Final = 5.0
"""Of a body. One that is not answered in time shows that the sibling is gone without a word."""

ANSWER_SECONDS: Final = 1.0
"""From a body's end to the answer."""

RETRY_SECONDS: Final = 1.0
"""After a failure."""

SELF_SECONDS: Final = 30.0
"""Until an address that leads to this very replica is tried again: it may be another one's then."""

JITTER: Final = 0.1

MAX_BEHIND: Final = 16
"""Lines of prompts that wait to be told: a megabyte. Of more the oldest are dropped."""

MAX_ANSWER_BYTES: Final = 4096


class SiblingStream:
    """Tells the replica whose admin listener is at `url`, over `tls` if that is https. `replica` is
    this one's own name, and `scheme` that of its prompts' keys; None: they are not told."""

    def __init__(
        self,
        url: str,
        session: aiohttp.ClientSession,
        tls: TLSFiles | None,
        replica: str,
        scheme: str | None,
        rng: Random,
    ) -> None:
        self.error: str | None = None
        """Why it cannot be told; None where it can, and before the first try."""
        self.is_self = False
        """Whether it is this replica."""
        self.takes_prompts = False
        """Whether it is told of prompts: it makes the same keys."""
        self.dropped = 0
        """Lines of prompts that it was too slow for."""
        self._url = url
        self._session = session
        self._tls = tls
        self._replica = replica
        self._scheme = scheme
        self._rng = rng
        self._report: bytes | None = None
        self._prompts: deque[bytes] = deque()
        self._has_news = asyncio.Event()

    def tell(self, report: bytes) -> None:
        """Tell this report, in place of one that still waits."""
        self._report = report
        self._has_news.set()

    def tell_prompts(self, line: bytes) -> None:
        """Tell these prompts too, if it makes something of them."""
        if not self.takes_prompts:
            return
        if len(self._prompts) >= MAX_BEHIND:
            self._prompts.popleft()
            self.dropped += 1
        self._prompts.append(line)
        self._has_news.set()

    async def run(self) -> None:
        """Tell until cancelled."""
        while True:
            # Whether it can be told, and is another replica, one short request finds out.
            pause = await self._post(b"", ANSWER_SECONDS)
            while pause is None:
                pause = await self._post(self._lines(), STREAM_SECONDS + ANSWER_SECONDS)
            self.takes_prompts = False
            self._prompts.clear()
            await asyncio.sleep(pause * self._rng.uniform(1 - JITTER, 1 + JITTER))

    async def _lines(self) -> AsyncGenerator[bytes, None]:
        loop = asyncio.get_running_loop()
        end = loop.time() + STREAM_SECONDS
        while (left := end - loop.time()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._has_news.wait()
            self._has_news.clear()
            report, self._report = self._report, None
            if report is not None:
                yield report + b"\n"
            while self._prompts:
                yield self._prompts.popleft() + b"\n"

    async def _post(self, body: bytes | AsyncIterator[bytes], seconds: float) -> float | None:
        """Returns seconds to wait before the next try; None if all is well."""
        try:
            async with self._session.post(
                self._url + PEERS_PATH,
                data=body,
                timeout=aiohttp.ClientTimeout(total=seconds),
                allow_redirects=False,
                ssl=True if self._tls is None else self._tls.context,
            ) as answer:
                told = await answer.content.read(MAX_ANSWER_BYTES)
                error = None if answer.status == 200 else _advice(answer.status)
        except (aiohttp.ClientError, TimeoutError, OSError) as failure:
            told, error = b"", f"it cannot be reached ({type(failure).__name__}); check --peers"
        self._note(error)
        if error is not None:
            return RETRY_SECONDS
        name, scheme = _read(told)
        self.is_self = name == self._replica
        if self.is_self:
            return SELF_SECONDS
        self.takes_prompts = self._scheme is not None and scheme == self._scheme
        return None

    def _note(self, error: str | None) -> None:
        """Log what has changed."""
        before, self.error = self.error, error
        if error is not None and error != before:
            log.warning("sibling replica %s: %s", self._url, error)
        elif error is None and before is not None:
            log.info("sibling replica %s: works again", self._url)


def _advice(status: int) -> str:
    if status == 401:
        return "it does not accept the key: give all replicas the same --peer-key"
    if status == 404:
        return "it does not take reports: start it with --peers, and name its admin port here"
    return f"it answers {status} to reports"


def _read(answer: bytes) -> tuple[object, object]:
    """The name of the replica that gave an answer, and the scheme of its keys; None for what it
    does not say."""
    try:
        told = orjson.loads(answer)
    except orjson.JSONDecodeError:
        return None, None
    return (told.get("replica"), told.get("keys")) if isinstance(told, dict) else (None, None)
