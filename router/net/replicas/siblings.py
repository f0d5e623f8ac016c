"""Sends this router's requests and prompts to its sibling replicas, and receives theirs.

One process of each replica sends, for all of its workers. Any worker may receive a sibling's
reports, and passes them on to the others.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from random import Random
from typing import Final

import aiohttp

from router.core.events import PrefixesHeld
from router.core.fleet.fleet import Fleet
from router.core.replicas import (
    SAME_SECONDS,
    STALE_SECONDS,
    PeerBoard,
    PeerHistory,
    PeerReport,
    encode_history,
    encode_report,
    seconds_between_reports,
)
from router.net.replicas.stream import PEERS_PATH, SendStatus, SiblingStream, StreamStatus
from router.net.tasks import TaskSet
from router.net.watched_files import TLSFiles

__all__ = ["PEERS_PATH", "Siblings"]

log = logging.getLogger(__name__)

FORGET_SECONDS: Final = STALE_SECONDS / 20
"""Seconds between checks for silent siblings."""

JITTER: Final = 0.1


class Siblings:
    """The other replicas, by the URLs of their admin listeners. `session` opens connections, with
    `tls` for https. `pass_on` is called with what the other workers need: received messages, and to
    whom this process sends. `scheme`: the scheme of the prefix keys (`prefix.keys.scheme`); None:
    prompts are not sent."""

    def __init__(
        self,
        board: PeerBoard,
        fleet: Fleet,
        *,
        session: Callable[[], aiohttp.ClientSession],
        tls: TLSFiles,
        pass_on: Callable[[PeerReport | PeerHistory | SendStatus], None],
        scheme: str | None,
        tasks: TaskSet,
        rng: Random,
    ) -> None:
        self._board = board
        self._fleet = fleet
        self._make_session = session
        self._tls = tls
        self._pass_on = pass_on
        self.scheme = scheme
        self._tasks = tasks
        self._rng = rng
        self._session: aiohttp.ClientSession | None = None
        self._streams: dict[str, tuple[SiblingStream, asyncio.Task[None]]] = {}
        self._has_changed = asyncio.Event()
        self._prompts: list[PrefixesHeld] = []
        """Prompts that have not been sent yet."""
        self._sent_by_leader: tuple[StreamStatus, ...] = ()
        """The status of reports that another process sends for this one."""

    @property
    def replica(self) -> str:
        """This replica's own name."""
        return self._board.replica

    # Receiving.

    def receive(self, message: PeerReport | PeerHistory) -> None:
        """Process a message of a sibling and pass it on to other workers."""
        if self._take(message):
            self._pass_on(message)

    def receive_forwarded(self, message: PeerReport | PeerHistory | SendStatus) -> None:
        """Process what another worker has passed on."""
        if isinstance(message, SendStatus):
            self._sent_by_leader = message.streams
        else:
            self._take(message)

    def _take(self, message: PeerReport | PeerHistory) -> bool:
        """Process a message. Returns whether it is of use."""
        now = time.monotonic()
        if isinstance(message, PeerReport):
            return self._board.receive(message, now)
        if message.scheme != self.scheme or message.replica == self._board.replica:
            return False
        for held in message.held:
            self._fleet.observe_shared(held, now)
        return True

    async def expire_forever(self, *, is_logged: bool) -> None:
        """Remove silent siblings, until cancelled. Of several workers only one logs them."""
        while True:
            await asyncio.sleep(FORGET_SECONDS)
            for name in self._board.tick(time.monotonic()):
                if is_logged:
                    text = "sibling replica %s is silent: its requests are not known"
                    log.warning(text, self._url_of(name) or f"{name:.8} (not in --peers)")

    def shown(self) -> dict[str, object]:
        """The siblings for operators: which ones send, and which ones are sent to."""
        heard = self._board.siblings(time.monotonic())
        return {
            "replica": self._board.replica,
            "heard": [
                {
                    "replica": name,
                    "url": self._url_of(name),
                    "age_seconds": age,
                    "requests": requests,
                }
                for name, (age, requests) in heard.items()
            ],
            "told": [status._asdict() for status in self._statuses()],
        }

    def _url_of(self, name: str) -> str | None:
        """The address at which a replica has answered; None if this one does not send to it."""
        return next((each.url for each in self._statuses() if name in each.replicas), None)

    def _statuses(self) -> tuple[StreamStatus, ...]:
        return self._sent() or self._sent_by_leader

    def _sent(self) -> tuple[StreamStatus, ...]:
        return tuple(stream.status for stream, _ in self._streams.values())

    # Sending.

    def follow(self, urls: Iterable[str]) -> None:
        """Set the replicas; this one may be among them."""
        if self._session is None:
            self._session = self._make_session()
        wanted = set(urls)
        for url in self._streams.keys() - wanted:
            _, task = self._streams.pop(url)
            task.cancel()
        for url in sorted(wanted - self._streams.keys()):
            stream = SiblingStream(
                url, self._session, self._tls, self._board.replica, self.scheme, self._rng
            )
            self._streams[url] = stream, self._tasks.spawn(stream.run, "peers", url)

    def note(self, held: PrefixesHeld) -> None:
        """Add prompts that engines have computed for this replica, to be sent."""
        if any(stream.takes_prompts for stream, _ in self._streams.values()):
            self._prompts.append(held)
            self._has_changed.set()

    async def close(self) -> None:
        """Close the connections. The tasks must have ended before."""
        if self._session is not None:
            await self._session.close()

    def report(self) -> PeerReport:
        """This replica's own requests."""
        # Numbers increase also from one leader to the next.
        return PeerReport(self._board.replica, time.monotonic_ns(), self._fleet.ledger.own())

    async def send_forever(self, poll_seconds: float = SAME_SECONDS) -> None:
        """Send changes, until cancelled. Every `poll_seconds` it checks for changes by other
        workers, of which this process is not notified."""
        sent: object = None
        due = status_due = 0.0
        self._board.on_change = self._has_changed.set
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(poll_seconds):
                    await self._has_changed.wait()
            self._has_changed.clear()
            report, now = self.report(), time.monotonic()
            if self._streams and (report.loads != sent or now >= due):
                sent, due = report.loads, now + SAME_SECONDS
                line = encode_report(report)
                for stream, _ in self._streams.values():
                    stream.send(line)
            self._tell_prompts()
            if now >= status_due:  # unchanged ones too: another worker may have restarted
                status_due = now + SAME_SECONDS
                self._pass_on(SendStatus(self._sent()))
            seconds = seconds_between_reports(len(report.loads))
            await asyncio.sleep(seconds * self._rng.uniform(1 - JITTER, 1 + JITTER))

    def _tell_prompts(self) -> None:
        news, self._prompts = self._prompts, []
        if not news or self.scheme is None:
            return
        for line in encode_history(self._board.replica, self.scheme, news):
            for stream, _ in self._streams.values():
                stream.send_prompts(line)
