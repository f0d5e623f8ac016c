"""A file of API keys, read again when it changes."""

import asyncio
import logging
from pathlib import Path
from typing import Final

from router.core.api_keys import ApiKeys

__all__ = ["KeyFile"]

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
"""Between two looks: a key that is taken away is good for so long."""

Version = tuple[int, int, int]


class KeyFile:
    """The keys of a file. Raises OSError or ValueError if it cannot be read now; later a file that
    is wrong is logged, and the keys that were read last remain."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._version = self._look()
        self._is_away = False
        """Whether it could not be read when it was last tried."""
        self.keys = self._read()

    async def follow(self) -> None:
        """Read it again whenever it has changed, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.refresh()

    def refresh(self) -> None:
        """Read it again if it has changed."""
        try:
            version = self._look()
            if version == self._version:
                return
            self._version = version
            self.keys = self._read()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            is_away = isinstance(error, OSError)
            if not (is_away and self._is_away):  # once for each version, or while it is away
                log.error("API keys: %s: %s; the old ones remain", self._path, reason)  # noqa: TRY400
            self._is_away = is_away
            if is_away:
                self._version = None
        else:
            self._is_away = False
            names = ", ".join(sorted(self.keys.names))
            log.info("API keys: %s was read again: %s", self._path, names)

    def _look(self) -> Version | None:
        """What differs when the file is written anew, or replaced as Kubernetes does it."""
        status = self._path.stat()
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _read(self) -> ApiKeys:
        return ApiKeys(self._path.read_text(encoding="utf-8"))
