"""A router whose time of day jumps, by libfaketime; its monotonic clock continues."""

from pathlib import Path

import pytest

__all__ = ["LIBRARIES", "Clock", "needs_faketime"]

LIBRARIES = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))

needs_faketime = pytest.mark.skipif(not LIBRARIES, reason="needs apt install faketime")


class Clock:
    """The time of day of processes that `launcher` starts. `file` holds how far it is off."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set(0)

    def set(self, seconds: int) -> None:
        """Let it be off by so much, from now on."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+d}\n")
        new.replace(self._file)

    @property
    def launcher(self) -> tuple[str, ...]:
        """A command that becomes the one that it is given."""
        return (
            "env",
            f"LD_PRELOAD={LIBRARIES[0]}",
            f"FAKETIME_TIMESTAMP_FILE={self._file}",
            "FAKETIME_NO_CACHE=1",
            "FAKETIME_DONT_FAKE_MONOTONIC=1",
        )
