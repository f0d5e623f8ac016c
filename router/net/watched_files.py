"""Files that are checked at intervals, and read again when they have changed."""

from pathlib import Path
from typing import Final

__all__ = ["LOOK_SECONDS", "WatchedFiles"]

LOOK_SECONDS: Final = 1.0
"""Between two looks. Events of changes (inotify) would come sooner, but the files of a ConfigMap
are links that are exchanged, and network file systems have no such events."""

Version = tuple[int, int, int]


class WatchedFiles:
    """Some files, as they are now."""

    def __init__(self, *paths: Path) -> None:
        self._paths = paths
        self._versions = self._look()

    def have_changed(self) -> bool:
        """Whether one of them is another than at the last look."""
        before, self._versions = self._versions, self._look()
        return self._versions != before

    def _look(self) -> list[Version | None]:
        return [_version(path) for path in self._paths]


def _version(path: Path) -> Version | None:
    """A value that changes when the file is rewritten, or replaced as Kubernetes does it; None if
    it cannot be seen."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
