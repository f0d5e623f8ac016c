"""A TLS context that is rebuilt when its files change."""

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
        self._complaint = ""
        """Why it could not be made when that was last tried."""
        self.context = make()

    def refresh(self) -> None:
        """Rebuild it if a file has changed. While that fails the old one stays, and it is tried
        each time: what is wrong need not be in the files (their mode, too many open files)."""
        if not self._files.have_changed() and not self._complaint:
            return
        try:
            self.context = self._make()
        except ValueError as error:  # perhaps the other file of a pair is yet to come
            if (complaint := str(error)) != self._complaint:
                self._complaint = complaint
                log.error("%s: %s; the old ones remain", self._what, complaint)  # noqa: TRY400
        else:
            self._complaint = ""
            log.info("%s: the certificates were read again", self._what)
