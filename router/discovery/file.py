"""Names the engines by a file, which is looked at every second.

What it holds is taken as a whole: with a mistake in it the last good set stays.
"""

import asyncio
import logging
from pathlib import Path

from router.core.membership import engines_file
from router.discovery.source import OnAnswer, OnTargets

__all__ = ["FileSource"]

log = logging.getLogger(__name__)

SECONDS = 1.0
"""Between two looks. Events of changes (inotify) would come sooner, but the files of a ConfigMap
are links that are exchanged, and network file systems have no such events."""


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
        """What was last looked at, right or wrong."""
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
                log.info("%s: it is right again, the engines are those in it", self.name)
            on_targets(targets)

    def _complain(self, complaint: str) -> None:
        """Say once what is wrong."""
        if complaint != self._complaint:
            self._complaint = complaint
            log.error("%s: %s; the engines stay as they are: mend it", self.name, complaint)


def _contents(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(engines_file.MAX_BYTES + 1)
