"""Tells the sibling replicas of this router its own requests, and notes what they tell of theirs.

One process of each replica tells, for all of its workers; any worker may get what siblings send,
and passes it on to the others.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from typing import Final

import aiohttp
import orjson

from router.core.fleet import Fleet
from router.core.peer_loads import (
    SAME_SECONDS,
    TELL_SECONDS,
    PeerBoard,
    PeerReport,
    encode,
)
from router.core.values import Endpoint
from router.net.tasks import TaskSet

__all__ = ["PEERS_PATH", "Siblings"]

log = logging.getLogger(__name__)

PEERS_PATH: Final = "/admin/peers"

TIMEOUT: Final = aiohttp.ClientTimeout(total=1.0)
"""For one report. What is older is of no use: the next one is told instead."""

SELF_SECONDS: Final = 30.0
"""Until an address that leads to this very replica is tried again: it may be another one's then."""

MAX_ANSWER_BYTES: Final = 4096

JITTER: Final = 0.1


class Siblings:
    """The other replicas, by the URLs of their admin listeners. `session` opens the connections;
    `pass_on` gets each report that was heard, for the other workers."""

    def __init__(
        self,
        board: PeerBoard,
        fleet: Fleet,
        *,
        session: Callable[[], aiohttp.ClientSession],
        pass_on: Callable[[PeerReport], None],
        tasks: TaskSet,
        rng: Random,
    ) -> None:
        self._board = board
        self._fleet = fleet
        self._make_session = session
        self._pass_on = pass_on
        self._tasks = tasks
        self._rng = rng
        self._session: aiohttp.ClientSession | None = None
        self._tellers: dict[str, asyncio.Task[None]] = {}
        self._errors: dict[str, str | None] = {}
        """Why a sibling cannot be told; None where it can."""

    # Hearing.

    def hear(self, report: PeerReport) -> None:
        """A sibling has told of its requests."""
        if self._board.hear(report, time.monotonic()):
            self._pass_on(report)

    def hear_passed_on(self, report: PeerReport) -> None:
        """The same, by way of another worker."""
        self._board.hear(report, time.monotonic())

    async def forget_for_ever(self) -> None:
        """Forget siblings that have fallen silent, until cancelled."""
        while True:
            await asyncio.sleep(TELL_SECONDS)
            for name in self._board.tick(time.monotonic()):
                log.warning("sibling replica %.8s is silent: its requests are not known", name)

    def shown(self) -> dict[str, object]:
        """For operators: who tells, and who is told."""
        heard = self._board.siblings(time.monotonic())
        return {
            "replica": self._board.replica,
            "heard": [
                {"replica": name, "age_seconds": age, "requests": requests}
                for name, (age, requests) in heard.items()
            ],
            "told": [{"url": url, "error": error} for url, error in self._errors.items()],
        }

    # Telling.

    def follow(self, urls: Iterable[str]) -> None:
        """These are the replicas from now on; this one may be among them."""
        if self._session is None:
            self._session = self._make_session()
        wanted = set(urls)
        for url in self._tellers.keys() - wanted:
            self._tellers.pop(url).cancel()
            self._errors.pop(url, None)
        for url in sorted(wanted - self._tellers.keys()):
            self._tellers[url] = self._tasks.spawn(partial(self._tell, url), "peers", url)

    async def close(self) -> None:
        """Close the connections; the tasks must have ended."""
        if self._session is not None:
            await self._session.close()

    def report(self) -> PeerReport:
        """This replica's own requests, now."""
        ledger = self._fleet.ledger
        own = ((member.endpoint, ledger.load(member.endpoint).own) for member in self._fleet)
        loads = {
            endpoint: (load.requests, max(0, load.pending))
            for endpoint, load in own
            if load.requests > 0
        }
        # Of two leaders, one after the other, the later one has the larger numbers.
        return PeerReport(self._board.replica, time.monotonic_ns(), loads)

    async def _tell(self, url: str) -> None:
        told: dict[Endpoint, tuple[int, int]] | None = None
        due = 0.0
        while True:
            report, now = self.report(), time.monotonic()
            seconds = TELL_SECONDS
            if report.loads != told or now >= due:
                told, due = report.loads, now + SAME_SECONDS
                if await self._tell_once(url, report):
                    seconds = SELF_SECONDS
            await asyncio.sleep(seconds * self._rng.uniform(1 - JITTER, 1 + JITTER))

    async def _tell_once(self, url: str, report: PeerReport) -> bool:
        """Returns whether it is this replica itself."""
        assert self._session is not None, "opened by `follow`"
        try:
            async with self._session.post(
                url + PEERS_PATH, data=encode(report), timeout=TIMEOUT, allow_redirects=False
            ) as answer:
                body = await answer.content.read(MAX_ANSWER_BYTES)
                error = None if answer.status == 200 else _advice(answer.status)
        except (aiohttp.ClientError, TimeoutError, OSError) as failure:
            self._note(url, f"it cannot be reached ({type(failure).__name__}); check --peers")
            return False
        is_self = error is None and _replica(body) == self._board.replica
        self._note(url, error)
        return is_self

    def _note(self, url: str, error: str | None) -> None:
        """Log what has changed."""
        before = self._errors.get(url, "")
        self._errors[url] = error
        if error is not None and error != before:
            log.warning("sibling replica %s: %s", url, error)
        elif error is None and before:
            log.info("sibling replica %s: works again", url)


def _advice(status: int) -> str:
    if status == 401:
        return "it does not accept the key: give all replicas the same --peer-key"
    if status == 404:
        return "it does not take reports: start it with --peers, and name its admin port here"
    return f"it answers {status} to reports"


def _replica(body: bytes) -> object:
    try:
        told = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return told.get("replica") if isinstance(told, dict) else None
