"""Detects changes of files by polling."""

from pathlib import Path
from typing import Final

__all__ = ["POLL_SECONDS", "WatchedFiles"]

POLL_SECONDS: Final = 1.0
"""Seconds between checks. inotify would be faster, but the files of a ConfigMap are symlinks that
are replaced, and network file systems have no such events."""

Version = tuple[int, int, int]


class WatchedFiles:
    """A set of files, as they were at the last check."""

    def __init__(self, *paths: Path) -> None:
        self._paths = paths
        self._versions = self._look()

    def have_changed(self) -> bool:
        """Whether one of them has changed since the last check."""
        before, self._versions = self._versions, self._look()
        return self._versions != before

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
