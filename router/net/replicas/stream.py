"""Sends reports to one sibling replica, as lines in the bodies of requests that last for seconds.

A request for each report would cost both sides several times as much. A sibling that reads slowly
gets only the latest report and the latest prompts.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from random import Random
from typing import Final, NamedTuple

import aiohttp
import orjson

from router.net.watched_files import TLSFiles

__all__ = ["PEERS_PATH", "SendStatus", "SiblingStream", "StreamStatus"]

log = logging.getLogger(__name__)

PEERS_PATH: Final = "/admin/peers"

STREAM_SECONDS: Final = 5.0
"""Duration of a body in seconds. If it is not answered in time, the sibling is gone."""

ANSWER_SECONDS: Final = 1.0
"""Time-out in seconds from the end of a body to the response."""

RETRY_SECONDS: Final = 1.0
"""Seconds until a retry after a failure."""

SELF_SECONDS: Final = 30.0
"""Seconds until an address that led to this replica itself is tried again; it may then be another
one's."""

JITTER: Final = 0.1

MAX_BEHIND: Final = 16
"""Most unsent lines with prompts, about a megabyte. Beyond that the oldest are dropped."""

MAX_ANSWER_BYTES: Final = 4096

MAX_NAMES: Final = 2
"""Names kept for each address: after a restart of the replica the old one is still missed."""


class StreamStatus(NamedTuple):
    """What operators see of the reports to one sibling."""

    url: str
    is_self: bool
    """Whether the address is this replica's own."""
    error: str | None
    """Why sending fails; None if it works, and before the first attempt."""
    prompts: bool
    """Whether prompts are sent, because the sibling makes the same keys."""
    dropped: int
    """Lines with prompts that were dropped because it was too slow."""
    replicas: tuple[str, ...]
    """The names by which it has answered, the latest last."""


@dataclass(frozen=True, slots=True)
class SendStatus:
    """The state of all streams, from the process of a replica that sends to the other ones."""

    streams: tuple[StreamStatus, ...]


class SiblingStream:
    """Sends to the replica whose admin listener is at `url`, over `tls` for https. `replica`: this
    replica's own name. `scheme`: the scheme of its prefix keys; None: no prompts are sent."""

    def __init__(
        self,
        url: str,
        session: aiohttp.ClientSession,
        tls: TLSFiles | None,
        replica: str,
        scheme: str | None,
        rng: Random,
    ) -> None:
        # See `StreamStatus`.
        self.error: str | None = None
        self.is_self = self.takes_prompts = False
        self.dropped = 0
        self.replicas: tuple[str, ...] = ()
        self._url = url
        self._session = session
        self._tls = tls
        self._replica = replica
        self._scheme = scheme
        self._rng = rng
        self._report: bytes | None = None
        self._prompts: deque[bytes] = deque()
        self._has_news = asyncio.Event()

    @property
    def status(self) -> StreamStatus:
        """What operators see of it."""
        return StreamStatus(
            *(self._url, self.is_self, self.error, self.takes_prompts, self.dropped, self.replicas)
        )

    def send(self, report: bytes) -> None:
        """Send this report, in place of an unsent one."""
        self._report = report
        self._has_news.set()

    def send_prompts(self, line: bytes) -> None:
        """Send these prompts too, if the sibling can use them."""
        if not self.takes_prompts:
            return
        if len(self._prompts) >= MAX_BEHIND:
            self._prompts.popleft()
            self.dropped += 1
        self._prompts.append(line)
        self._has_news.set()

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            # A short request finds out whether the sibling can be reached and is another replica.
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
        """Send a request. Returns the seconds to wait before the next attempt, None if it
        succeeded."""
        try:
            async with self._session.post(
                self._url + PEERS_PATH,
                data=body,
                timeout=aiohttp.ClientTimeout(total=seconds),
                allow_redirects=False,
                ssl=True if self._tls is None else self._tls.context,
            ) as answer:
                text = await answer.content.read(MAX_ANSWER_BYTES)
                error = None if answer.status == 200 else _advice(answer.status)
        except (aiohttp.ClientError, TimeoutError, OSError) as failure:
            text, error = b"", f"it cannot be reached ({type(failure).__name__}); check --peers"
        self._note(error)
        if error is not None:
            return RETRY_SECONDS
        name, scheme = _read(text)
        if isinstance(name, str) and name not in self.replicas:
            self.replicas = (*self.replicas, name)[-MAX_NAMES:]
        self.is_self = name == self._replica
        if self.is_self:
            return SELF_SECONDS
        self.takes_prompts = self._scheme is not None and scheme == self._scheme
        return None

    def _note(self, error: str | None) -> None:
        """Log a change of `error`."""
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
    """The name and key scheme of the replica in a response; None where missing."""
    try:
        found = orjson.loads(answer)
    except orjson.JSONDecodeError:
        return None, None
    return (found.get("replica"), found.get("keys")) if isinstance(found, dict) else (None, None)
