"""A TLS context that is rebuilt when its files change."""

import logging
import ssl
from collections.abc import Callable
from pathlib import Path

from router.net.watched_files import WatchedFiles

__all__ = ["TLSFiles"]

log = logging.getLogger(__name__)


class TLSFiles:
    """`context` is the current one, for new connections. `make` creates one from the files and
    raises ValueError if it cannot; `what` is its name in the log."""

    def __init__(self, what: str, make: Callable[[], ssl.SSLContext], *paths: Path | None) -> None:
        self._what = what
        self._make = make
        self._files = WatchedFiles(*(path for path in paths if path is not None))
        self._complaint = ""
        """Why the last attempt to create it failed; empty if it did not."""
        self.context = make()

    def refresh(self, *, is_logged: bool = True) -> None:
        """Create the context again if a file has changed. While that fails the old one stays in
        use, and each call tries again, because the cause may not be in the files' content
        (permissions, file descriptors). An error is logged once."""
        if not self._files.have_changed() and not self._complaint:
            return
        before, self._complaint = self._complaint, ""
        try:
            self.context = self._make()
        except ValueError as error:  # perhaps the other file of a pair is not there yet
            self._complaint = complaint = str(error)
            if is_logged and complaint != before:
                text = "%s: %s; keeping the previous certificates"
                log.error(text, self._what, complaint)  # noqa: TRY400 - no traceback
        else:
            if is_logged:
                log.info("%s: the certificates were read again", self._what)
