"""Receives the reports of sibling replicas, on the admin listener."""

from typing import Final

import orjson
from fastapi import FastAPI

from router.core.errors import BadRequest
from router.core.shared.peer_messages import MAX_LINE_BYTES, decode
from router.net.client.client_connection import ClientConnection
from router.net.client.client_request import ClientRequest
from router.net.processes.siblings import PEERS_PATH, Siblings

__all__ = ["PeersCall", "add_peers_api"]

JSON: Final = b"content-type: application/json\r\n"


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
                    self._siblings.receive(decode(line))
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
