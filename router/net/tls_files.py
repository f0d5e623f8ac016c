"""A TLS context that is made anew when its files change."""

import logging
import ssl
from collections.abc import Callable
from pathlib import Path

from router.net.watched_files import WatchedFiles

__all__ = ["TLSFiles"]

log = logging.getLogger(__name__)


class TLSFiles:
    """`context` is the current one, for the connections that begin now. `make` makes one of the
    files, and raises ValueError if it cannot; `what` is its name in the log."""

    def __init__(self, what: str, make: Callable[[], ssl.SSLContext], *paths: Path | None) -> None:
        self._what = what
        self._make = make
        self._files = WatchedFiles(*(path for path in paths if path is not None))
        self.context = make()

    def refresh(self) -> None:
        """Make it anew if a file has changed; while they are wrong the old one remains."""
        if not self._files.have_changed():
            return
        try:
            self.context = self._make()
        except ValueError as error:  # perhaps the other file of a pair is yet to come
            log.error("%s: %s; the old ones remain", self._what, error)  # noqa: TRY400
        else:
            log.info("%s: the certificates were read again", self._what)
