"""Files that are read again when they change: certificates, and API keys."""

import logging
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from router.core.limits.api_keys import ApiKeys
from router.core.limits.key_limits import NO_LIMITS, KeyLimits, KeyRows, KeyUsage

__all__ = ["POLL_SECONDS", "KeyFile", "TLSFiles", "WatchedFiles"]

log = logging.getLogger(__name__)

POLL_SECONDS: Final = 1.0
"""Seconds between checks. inotify would be faster, but the files of a ConfigMap are symlinks that
are replaced, and network file systems have no such events."""

Version = tuple[int, int, int]


class WatchedFiles:
    """A set of files, as they were at the last check."""

    def __init__(self, *paths: Path) -> None:
        self._paths = paths
        self._versions = self._look()
        self._complaint = ""
        """Why `reread` failed the last time; empty if it did not."""

    def have_changed(self) -> bool:
        """Whether one of them has changed since the last check."""
        before, self._versions = self._versions, self._look()
        return self._versions != before

    def reread(self, read: Callable[[], str], what: str, kept: str, *, is_logged: bool) -> None:
        """Call `read`, which returns what to log, if a file has changed.

        If it raises OSError or ValueError, what was read before stays in use, and each call tries
        again, because the cause may not be in the files' content (permissions, file descriptors).
        The error is logged once: of `what`, keeping the previous `kept`.
        """
        if not self.have_changed() and not self._complaint:
            return
        before, self._complaint = self._complaint, ""
        try:
            done = read()
        except (OSError, ValueError) as error:  # perhaps the other file of a pair is not there yet
            self._complaint = complaint = str(getattr(error, "strerror", None) or error)
            if is_logged and complaint != before:
                text = "%s: %s; keeping the previous %s"
                log.error(text, what, complaint, kept)  # noqa: TRY400 - no traceback
        else:
            if is_logged:
                log.info("%s: %s", what, done)

    def _look(self) -> list[Version | None]:
        return [_version(path) for path in self._paths]


def _version(path: Path) -> Version | None:
    """A value that changes when the file is rewritten, or replaced the way Kubernetes does. None if
    it cannot be read."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


class TLSFiles:
    """A TLS context that is rebuilt when its files change. `context` is the current one, for new
    connections. `make` creates one from the files and raises ValueError if it cannot; `what` is its
    name in the log."""

    def __init__(self, what: str, make: Callable[[], ssl.SSLContext], *paths: Path | None) -> None:
        self._what = what
        self._make = make
        self._files = WatchedFiles(*(path for path in paths if path is not None))
        self.context = make()

    def refresh(self, *, is_logged: bool = True) -> None:
        """Create the context again if a file has changed; see `WatchedFiles.reread`."""
        self._files.reread(self._reread, self._what, "certificates", is_logged=is_logged)

    def _reread(self) -> str:
        self.context = self._make()
        return "the certificates were read again"


class KeyFile:
    """The API keys of a file, and the usage of each key. Raises OSError or ValueError if it cannot
    be read at first. Later an invalid file is logged, and the previous keys stay in use. If there
    are several processes, usage is counted in `rows`, which they share. `on_limits` is called with
    the limits by name each time they were read."""

    def __init__(
        self,
        path: Path,
        rows: KeyRows | None = None,
        on_limits: Callable[[Mapping[str, KeyLimits]], None] = lambda _: None,
    ) -> None:
        self.path = path
        self.usages: dict[str, KeyUsage] = {}
        """Usage by name, for keys that have limits."""
        self._rows = rows
        self._on_limits = on_limits
        self._file = WatchedFiles(path)
        self.keys = self._read()

    def refresh(self, *, is_logged: bool = True) -> None:
        """Read the file again if it has changed; see `WatchedFiles.reread`."""
        self._share_rest()
        self._file.reread(self._reread, f"API keys: {self.path}", "keys", is_logged=is_logged)

    def _reread(self) -> str:
        self.keys = self._read()
        return f"read again: {', '.join(sorted(self.keys.names))}"

    def _read(self) -> ApiKeys:
        keys = ApiKeys(self.path.read_text(encoding="utf-8-sig"))
        limited = {name: limits for name, limits in keys.limits.items() if limits != NO_LIMITS}
        rows = self._rows
        cells = {} if rows is None else rows.find(limited)
        usages = {}
        for name, limits in limited.items():
            row, usage = cells.get(name), self.usages.get(name)
            holds = limits if rows is None or row is not None else limits.share(rows.processes)
            if usage is None:
                usage = KeyUsage(holds, row)
            elif row is not None and not usage.is_shared:
                usage.share(holds, row)
            else:
                usage.configure(holds)
            usages[name] = usage
        self.usages = usages
        self._on_limits(keys.limits)
        return keys

    def _share_rest(self) -> None:
        """Use the shared rows that the leader has assigned since the file was read. Until then this
        process allows its own share of a limit."""
        if self._rows is None:
            return
        rest = [name for name, usage in self.usages.items() if not usage.is_shared]
        for name, row in self._rows.find(rest).items() if rest else ():
            self.usages[name].share(self.keys.limits[name], row)
