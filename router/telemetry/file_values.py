"""Where the counts of one of several worker processes are kept: files that all of them read.

prometheus-client's own class for this (`values.MultiProcessValue`) never forgets a label. This one
writes the same files, and drops what no series uses any more.
"""

import os
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from prometheus_client.mmap_dict import MmapedDict, mmap_key

__all__ = ["FileValue", "ValueFiles"]


class ValueFiles:
    """The files of worker `number` in `folder`. A restarted worker goes on with its predecessor's.

    Called as prometheus-client calls its `ValueClass`.
    """

    def __init__(self, folder: Path, number: int) -> None:
        self._folder = folder
        self._number = number
        self._files: dict[str, MmapedDict] = {}
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
        """A number of a series."""
        prefix = f"{typ}_{multiprocess_mode}" if typ == "gauge" else typ
        key = mmap_key(metric_name, name, list(labelnames), list(labelvalues), help_text)
        value = FileValue(self._file(prefix), prefix, key)
        self._values.add(value)
        return value

    def _path(self, prefix: str) -> Path:
        return self._folder / f"{prefix}_{self._number}.db"

    def _file(self, prefix: str) -> MmapedDict:
        file = self._files.get(prefix)
        if file is None:
            file = self._files[prefix] = MmapedDict(str(self._path(prefix)))  # type: ignore[no-untyped-call]
        return file

    def close(self) -> None:
        """Close the files; nothing can be counted any more."""
        for file in self._files.values():
            file.close()  # type: ignore[no-untyped-call]

    def compact(self, is_kept: Callable[[str], bool]) -> None:
        """Drop the keys that are not kept. Readers find the file of before or the one of now."""
        for prefix, file in list(self._files.items()):
            path = self._path(prefix)
            fresh = path.with_suffix(".new")
            fresh.unlink(missing_ok=True)
            copy = MmapedDict(str(fresh))  # type: ignore[no-untyped-call]
            for key, value, timestamp in file.read_all_values():  # type: ignore[no-untyped-call]
                if is_kept(key):
                    copy.write_value(key, value, timestamp)  # type: ignore[no-untyped-call]
            os.replace(fresh, path)
            self._files[prefix] = copy
            for each in self._values:
                if each.prefix == prefix:
                    each.file = copy
            file.close()  # type: ignore[no-untyped-call]


class FileValue:
    """A number in a file. Exemplars are not kept, as in prometheus-client's own class."""

    _multiprocess = True

    def __init__(self, file: MmapedDict, prefix: str, key: str) -> None:
        self.file = file
        self.prefix = prefix
        self._key = key
        self._value, self._timestamp = file.read_value(key)  # type: ignore[no-untyped-call]

    def inc(self, amount: float) -> None:
        """Add to it."""
        self.set(self._value + amount)

    def set(self, value: float, timestamp: float | None = None) -> None:
        """Replace it."""
        self._value = value
        self.file.write_value(self._key, value, timestamp or 0.0)  # type: ignore[no-untyped-call]

    def get(self) -> float:
        """The number."""
        return float(self._value)

    def set_exemplar(self, exemplar: object) -> None:
        """No effect."""

    def get_exemplar(self) -> None:
        """None."""
