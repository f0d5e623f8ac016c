"""The counts of one of several worker processes, in files that all workers read.

prometheus-client's own class for this (`values.MultiProcessValue`) never removes a label. This one
writes the same files, removes series that are no longer used, and survives a full file system: a
new series, or all of a file that cannot be created, is not exported until there is room.
"""

import logging
import os
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from prometheus_client.mmap_dict import MmapedDict, mmap_key
from prometheus_client.samples import Exemplar

__all__ = ["FileValue", "ValueFiles"]

log = logging.getLogger(__name__)

STEP_BYTES = 1 << 16
"""Bytes that are allocated for a file at a time; prometheus-client's initial size."""

ENTRY_BYTES = 28
"""Largest size in bytes of an entry besides its key: length, padding, value and timestamp."""


class ValueFiles:
    """The files of worker `number` in `folder`. A restarted worker continues those of its
    predecessor.

    It is called the way prometheus-client calls its `ValueClass`.
    """

    def __init__(self, folder: Path, number: int) -> None:
        self._folder = folder
        self._number = number
        self._files: dict[str, _File] = {}
        self._is_full = False
        self.exemplars: dict[str, Exemplar] = {}
        """The exemplars of this worker by key; the files cannot hold them."""
        self._values: weakref.WeakSet[FileValue] = weakref.WeakSet()

    def __call__(
        self,
        typ: str,
        metric_name: str,
        name: str,
        labelnames: Sequence[str],
        labelvalues: Sequence[str],
        help_text: str,
        multiprocess_mode: str = "",
        **_: Any,
    ) -> "FileValue":
        """Create a number of a series."""
        prefix = f"{typ}_{multiprocess_mode}" if typ == "gauge" else typ
        key = mmap_key(metric_name, name, list(labelnames), list(labelvalues), help_text)
        value = FileValue(self, prefix, key)
        self._values.add(value)
        return value

    def _path(self, prefix: str) -> Path:
        return self._folder / f"{prefix}_{self._number}.db"

    def file(self, prefix: str) -> "_File":
        """The file of a kind of metrics. Raises OSError if there is no room for it."""
        file = self._files.get(prefix)
        if file is None:
            file = self._files[prefix] = _File(self._path(prefix))
        return file

    def on_full(self, error: OSError) -> None:
        """Log once that the file system is full."""
        if not self._is_full:
            self._is_full = True
            log.warning(
                "counts are missing in this worker's metrics, for %s has no room: %s",
                self._folder.parent,
                error.strerror,
            )

    def close(self) -> None:
        """Close the files. Nothing can be counted afterwards."""
        for file in self._files.values():
            file.close()  # type: ignore[no-untyped-call]

    def compact(self, is_kept: Callable[[str], bool]) -> None:
        """Remove the keys that are not kept. Readers see either the old file or the new one."""
        for key in [key for key in self.exemplars if not is_kept(key)]:
            del self.exemplars[key]
        for prefix, file in list(self._files.items()):
            path = self._path(prefix)
            fresh = path.with_suffix(".new")
            fresh.unlink(missing_ok=True)
            try:
                copy = _copy(file, fresh, is_kept)
            except OSError:  # no room for both: keep the old one
                fresh.unlink(missing_ok=True)
                continue
            os.replace(fresh, path)
            self._files[prefix] = copy
            for each in self._values:
                if each.prefix == prefix:
                    each.file = copy
            file.close()  # type: ignore[no-untyped-call]


class _File(MmapedDict):
    """A mapped file whose written parts are allocated: writing to a page without room would be a
    SIGBUS.

    If there is no room it raises OSError instead. (Names that begin with _ are prometheus-client's,
    except `_room`.)
    """

    def __init__(self, path: Path) -> None:
        with path.open("ab") as file:
            if file.tell() == 0:
                try:
                    os.posix_fallocate(file.fileno(), 0, STEP_BYTES)
                except OSError:
                    path.unlink()
                    raise
        super().__init__(str(path))  # type: ignore[no-untyped-call]
        self._room = -(-self._used // STEP_BYTES) * STEP_BYTES
        """Number of allocated bytes, from the beginning."""

    def _init_value(self, key: str) -> None:
        end = self._used + len(key.encode()) + ENTRY_BYTES
        while end > self._room:
            os.posix_fallocate(self._f.fileno(), self._room, STEP_BYTES)
            self._room += STEP_BYTES
        super()._init_value(key)  # type: ignore[no-untyped-call]


def _copy(file: _File, path: Path, is_kept: Callable[[str], bool]) -> _File:
    copy = _File(path)
    try:
        for key, value, timestamp in file.read_all_values():  # type: ignore[no-untyped-call]
            if is_kept(key):
                copy.write_value(key, value, timestamp)  # type: ignore[no-untyped-call]
    except OSError:
        copy.close()  # type: ignore[no-untyped-call]
        raise
    return copy


class FileValue:
    """A number in the file of its kind. Without room it is kept in memory and written at a later
    change.
    """

    _multiprocess = True

    def __init__(self, files: ValueFiles, prefix: str, key: str) -> None:
        self.file: _File | None = None
        self.prefix = prefix
        self._key = key
        self._files = files
        self._value = 0.0
        try:
            self.file = files.file(prefix)
            self._value, _ = self.file.read_value(key)  # type: ignore[no-untyped-call]
        except OSError as error:
            files.on_full(error)

    def inc(self, amount: float) -> None:
        """Add to the number."""
        self.set(self._value + amount)

    def set(self, value: float, timestamp: float | None = None) -> None:
        """Set the number."""
        self._value = value
        try:
            if self.file is None:
                self.file = self._files.file(self.prefix)
            self.file.write_value(self._key, value, timestamp or 0.0)  # type: ignore[no-untyped-call]
        except OSError as error:
            self._files.on_full(error)

    def get(self) -> float:
        """The number."""
        return float(self._value)

    def set_exemplar(self, exemplar: Exemplar) -> None:
        """Set the exemplar."""
        self._files.exemplars[self._key] = exemplar

    def get_exemplar(self) -> Exemplar | None:
        """The exemplar, or None."""
        return self._files.exemplars.get(self._key)
