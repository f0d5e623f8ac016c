"""Sibling replicas (`--peers`, `--dns-peers`): sends them this router's load and prompts, and
receives theirs on the admin listener."""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final

import orjson
from fastapi import FastAPI

from router.core.errors import BadRequest
from router.core.fleet.fleet import Fleet
from router.core.membership.entry import Target
from router.core.prefix.keys import scheme
from router.core.replicas import MAX_LINE_BYTES, PeerBoard, PeerHistory, PeerReport, decode_message
from router.core.values import DECODE
from router.discovery.dns import DnsSource, SystemResolver
from router.net.client.client_connection import ClientConnection
from router.net.client.client_request import ClientRequest
from router.net.engine.engine_session import engine_session
from router.net.processes.shared_state import WorkerContext
from router.net.replicas import PEERS_PATH, SendStatus, Siblings
from router.net.tasks import TaskSet
from router.net.watched_files import TLSFiles
from router.settings import Settings, SettingsError

__all__ = [
    "PeersCall",
    "Replicas",
    "add_peers_api",
    "peer_source",
    "replicas_of",
]

KEEP_SECONDS = 30.0
"""Seconds for which an idle connection to a sibling is kept."""


WORKER_SECONDS = 0.02
"""Seconds between checks for changes by other workers."""


JSON: Final = b"content-type: application/json\r\n"


def peer_source(settings: Settings) -> DnsSource | None:
    """Creates the source that resolves siblings in DNS; None if it is off. Raises SettingsError if
    an extra is not installed."""
    if not settings.dns_peers:
        return None
    try:
        return DnsSource({DECODE: settings.dns_peers}, SystemResolver())
    except ImportError as error:
        raise SettingsError(str(error)) from None


def replicas_of(
    settings: Settings, fleet: Fleet, tls: TLSFiles, context: WorkerContext | None, tasks: TaskSet
) -> "Replicas | None":
    """Creates the siblings from the settings; None if there are none. `tls`: the same as for
    engines."""
    board = fleet.ledger.peers
    return None if board is None else Replicas(settings, fleet, tls, board, context, tasks)


class Replicas:
    """The sibling replicas named in the settings."""

    def __init__(
        self,
        settings: Settings,
        fleet: Fleet,
        tls: TLSFiles,
        board: PeerBoard,
        context: WorkerContext | None,
        tasks: TaskSet,
    ) -> None:
        self._urls = settings.peers
        self._source = peer_source(settings)
        self._context = context
        self._tasks = tasks
        self.siblings = Siblings(
            board,
            fleet,
            session=lambda: engine_session(
                settings.peer_key, tls.context, keep_alive_seconds=KEEP_SECONDS
            ),
            tls=tls,
            pass_on=self._pass_on,
            scheme=scheme() if settings.shares_prompts else None,
            tasks=tasks,
            rng=Random(),
        )

    def start(self) -> None:
        """Start to send reports (only in the leader) and to expire received ones."""
        is_leader = self._context is None or self._context.is_leader
        self._tasks.spawn(partial(self.siblings.expire_forever, is_logged=is_leader), "peers")
        if not is_leader:
            return
        self.siblings.follow(self._urls)
        send = self.siblings.send_forever
        self._tasks.spawn(send if self._context is None else partial(send, WORKER_SECONDS), "peers")
        if self._source is not None:
            watch: Callable[..., object] = self._source.watch
            self._tasks.spawn(partial(watch, self._found), "discovery", "peers")  # type: ignore[arg-type]

    def _found(self, targets: tuple[Target, ...]) -> None:
        self.siblings.follow((*self._urls, *(target.endpoint.url for target in targets)))

    def _pass_on(self, told: PeerReport | PeerHistory | SendStatus) -> None:
        if self._context is not None:
            self._context.bus.publish(told)


def add_peers_api(app: FastAPI, siblings: Siblings) -> None:
    """Add the route for operators to their application."""

    @app.get(PEERS_PATH)
    async def peers() -> dict[str, object]:
        """The sibling replicas of this router: those that send reports, and those that get them."""
        return siblings.shown()


class PeersCall:
    """A sibling's request, whose body is processed line by line as it arrives.

    The response names this replica, so that one that was configured with its own address notices
    it, and the scheme of its prefix keys.
    """

    def __init__(
        self, siblings: Siblings, client: ClientConnection, request: ClientRequest
    ) -> None:
        self._siblings = siblings
        self._client = client
        self._request = request
        self._begun = b""
        """The beginning of a line."""
        request.listener = self

    def on_body_progress(self, _size: int) -> None:
        """Process the lines that have arrived."""
        *lines, self._begun = (self._begun + bytes(self._request.take_body())).split(b"\n")
        if self._takes(lines) and len(self._begun) > MAX_LINE_BYTES:
            self._refuse(f"a line is longer than {MAX_LINE_BYTES} bytes")

    def on_body_complete(self) -> None:
        """Process the last line, and respond."""
        if self._takes((self._begun + bytes(self._request.take_body())).split(b"\n")):
            self._answer()

    def on_body_timeout(self) -> None:
        """End the request; the sibling will start another one."""
        self._answer()

    def on_disconnect(self) -> None:
        """The sibling has disconnected."""

    def on_write_paused(self) -> None:
        """Nothing is waiting to be written."""

    def on_write_resumed(self) -> None:
        """Nothing is waiting to be written."""

    def _takes(self, lines: list[bytes]) -> bool:
        """Whether all lines could be parsed."""
        try:
            for line in lines:
                if line:
                    self._siblings.receive(decode_message(line))
        except ValueError as error:
            self._refuse(str(error))
            return False
        return True

    def _refuse(self, why: str) -> None:
        self._client.fail(self._request, BadRequest(f"The report is not valid: {why}."))

    def _answer(self) -> None:
        siblings = self._siblings
        body = orjson.dumps({"replica": siblings.replica, "keys": siblings.scheme})
        self._client.response.start(200, JSON, len(body))
        self._client.response.write(body)
        self._client.end_response()
