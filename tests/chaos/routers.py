"""The router of a run, and those that take its place."""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import orjson

from tests.chaos.names import Names
from tests.e2e.process import Process, serving
from tests.forked import SECONDS

__all__ = ["WORKERS", "Routers"]

WORKERS = 2


class Routers:
    """One router after the other, on the same port, with the same flags and the same file."""

    def __init__(
        self, stack: AsyncExitStack, folder: Path, names: Names, *flags: str, **settings: Any
    ) -> None:
        """`settings` stand in the file: they may change while a router runs. `names` are what it
        resolves host names by."""
        self._stack = stack
        self._names = names
        self._settings = settings
        self._file = folder / "router.yaml"
        self._meeting = folder / "router.sock"
        self._flags = (*flags, "--workers", str(WORKERS))
        self._flags += ("--config", str(self._file), "--takeover", str(self._meeting))
        self._ended = 0
        self.started: list[Process] = []
        self.configure()

    @property
    def current(self) -> Process:
        """The one that accepts connections."""
        return self.started[-1]

    @property
    def workers(self) -> list[int]:
        """The ids of its worker processes."""
        pid = self.current.pid
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))

    @property
    def records(self) -> list[dict[str, Any]]:
        """All that was logged and could be read."""
        return [record for router in self.started for record in router.records]

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The log's lines of requests."""
        return [record for record in self.records if record["message"] == "request"]

    def configure(self, **settings: Any) -> None:
        """Write these into the file, over those that it had in the beginning."""
        new = self._file.with_suffix(".new")
        new.write_bytes(orjson.dumps({**self._settings, **settings}))  # JSON is YAML
        new.replace(self._file)

    async def start(self, log: Path | None = None, launcher: Sequence[str] = ()) -> None:
        """Start a router, which takes over from the one before. Returns when it has. `launcher` is
        as for `serving`."""
        port = self.started[-1].port if self.started else 0
        before = self._met_at()
        router = await self._stack.enter_async_context(
            serving(
                *("--port", str(port), *self._flags),
                launcher=(
                    *(*launcher, sys.executable, "-m", "tests.chaos.breakable"),
                    str(self._names.path),
                ),
                port=port,
                log=log,
            )
        )
        self.started.append(router)
        async with asyncio.timeout(SECONDS):
            while self._met_at() == before or len(self.workers) < WORKERS:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def only_one(self) -> None:
        """Wait until those before the current one have ended; they must do so without an error."""
        for router in self.started[self._ended : -1]:
            assert await router.status() == 0, router.records[-5:]
            self._ended += 1

    def _met_at(self) -> int:
        """Changes when a router waits for its successor there."""
        return self._meeting.stat().st_ino if self._meeting.exists() else 0
