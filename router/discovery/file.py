"""Lists the engines in a file, which is checked every second.

Its content is used completely or not at all: if it is invalid the last valid one stays in use.
"""

import asyncio
import logging
from pathlib import Path

from router.core.membership import engines_file
from router.discovery.source import OnAnswer, OnTargets

__all__ = ["FileSource"]

log = logging.getLogger(__name__)

SECONDS = 1.0
"""Seconds between checks. inotify would be faster, but the files of a ConfigMap are symlinks that
are replaced, and network file systems have no such events."""


class FileSource:
    """The engines of one file."""

    def __init__(
        self,
        path: Path,
        seconds: float = SECONDS,
        on_answer: OnAnswer = lambda server: None,
    ) -> None:
        self.name = f"file {path}"
        self._on_answer = on_answer
        self._path = path
        self._seconds = seconds
        self._seen: bytes | None = None
        """The last content that was read, valid or not."""
        self._complaint = ""

    @property
    def servers(self) -> tuple[str, ...]:
        """The file."""
        return (self.name,)

    async def watch(self, on_targets: OnTargets) -> None:
        """Run without end."""
        while True:
            try:
                data = await asyncio.to_thread(_contents, self._path)
            except OSError as error:
                self._seen = None
                self._complain(f"cannot be read: {error.strerror}")
            else:
                self._take(data, on_targets)
                if not self._complaint:
                    self._on_answer(self.name)
            await asyncio.sleep(self._seconds)

    def _take(self, data: bytes, on_targets: OnTargets) -> None:
        if data == self._seen:
            return
        self._seen = data
        try:
            targets = engines_file.read(data)
        except ValueError as error:
            self._complain(str(error))
        else:
            if self._complaint:
                self._complaint = ""
                log.info("%s: valid again; engine list updated", self.name)
            on_targets(targets)

    def _complain(self, complaint: str) -> None:
        """Log an error once."""
        if complaint != self._complaint:
            self._complaint = complaint
            log.error("%s: %s; keeping the previous engines. Fix the file.", self.name, complaint)


def _contents(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(engines_file.MAX_BYTES + 1)
