"""A client of the live page's events."""

from typing import Any

import orjson

from tests.net.client import Answer, Client, request

__all__ = ["EVENTS", "Watcher"]

EVENTS = "/dashboard/events"


class Watcher:
    """Reads the events of one connection."""

    def __init__(self, client: Client, answer: Answer) -> None:
        self.client = client
        self.answer = answer
        self._read = 0

    @classmethod
    async def on(cls, client: Client) -> "Watcher":
        """Begin to watch."""
        await client.send(request(EVENTS, method="GET"))
        return cls(client, await client.begin("GET"))

    async def event(self) -> tuple[str, Any]:
        """The next event's name and data; a retry time is passed over."""
        while True:
            block = await self._block()
            fields = dict(line.split(": ", 1) for line in block.splitlines())
            if "data" in fields:
                return fields["event"], orjson.loads(fields["data"])

    async def sample(self) -> Any:
        """The data of the next sample."""
        while True:
            name, data = await self.event()
            if name == "message":
                return data

    async def _block(self) -> str:
        while (end := self.answer.body.find(b"\n\n", self._read)) < 0:
            assert not self.answer.is_over, "the events have ended"
            await self.answer.more()
        block = self.answer.body[self._read : end].decode()
        self._read = end + 2
        return block
