"""Time that passes with the work of a router, not of the machine (see clock.c)."""

import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOURCE = Path(__file__).with_name("clock.c")
# Whether time is held, and nanoseconds skipped.
CONTROL = struct.Struct("=qq")


class Clock:
    """Compiles the library into `place`; it is started with a router and held while it is counted.

    Raises FileNotFoundError where there is no C compiler, CalledProcessError where it fails.
    """

    def __init__(self, place: Path) -> None:
        self._library, self._file = place / "clock.so", place / "clock"
        self._skipped_ns = 0
        self._file.write_bytes(CONTROL.pack(0, 0))
        flags = ("-shared", "-fPIC", "-O2", "-o", str(self._library), str(SOURCE))
        subprocess.run(["cc", *flags], check=True, capture_output=True)

    def environment(self) -> list[str]:
        """Variables to start the router with."""
        return [f"LD_PRELOAD={self._library}", f"BENCH_CLOCK={self._file}"]

    @contextmanager
    def held(self) -> Iterator[None]:
        """Meanwhile time passes with the router's work."""
        self._write(is_held=True)
        try:
            yield
        finally:
            self._write(is_held=False)

    def skip(self, seconds: float) -> None:
        """Let so much time pass at once, while it is held."""
        self._skipped_ns += round(seconds * 1e9)
        self._write(is_held=True)

    def _write(self, *, is_held: bool) -> None:
        # In place: the router has the file in its memory.
        with self._file.open("r+b") as file:
            file.write(CONTROL.pack(is_held, self._skipped_ns))
