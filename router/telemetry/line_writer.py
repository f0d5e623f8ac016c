"""Writes lines to a file descriptor without ever blocking, if need be in a thread: a log that is
not read, a slow disk or a full one must not hold up the event loop."""

import os
import queue
import select
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

__all__ = ["MAX_BYTES", "LineWriter"]

MAX_BYTES: Final = 4 << 20
"""Of lines that wait to be written: several seconds of a worker under full load, as a log collector
pauses while it rotates files. A line is a hundred bytes or more, so lines are bounded, too."""

NOWAIT: Final[int | None] = getattr(os, "RWF_NOWAIT", None)
"""None where Python was built for another system than Linux, or an older C library."""

UNREAD: Final = "it was not read fast enough"


class LineWriter:
    """Blocks of whole lines, in their order, each in one write.

    What does not fit is dropped until all that waits is written, so that there is one gap and not a
    hundred. Then `dropped_line` makes of the count and the cause the line that tells.
    """

    # Each count is changed by one thread only: no lock is needed, on the event loop least of all.

    def __init__(self, descriptor: int, dropped_line: Callable[[int, str], bytes]) -> None:
        self._descriptor = descriptor
        self._dropped_line = dropped_line
        self._blocks: queue.SimpleQueue[bytes | threading.Event | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_full = False
        self._queued = self._refused = 0
        """Bytes, and lines: by those who log."""
        self._taken = self._failed = self._told = 0
        """Bytes, and lines twice: by the thread."""
        self._cause = UNREAD
        self._is_prompt = True
        """Whether it can be told to write only what takes no time."""
        self._is_torn = False
        """Whether the last write ended within a line."""

    @property
    def dropped(self) -> int:
        """Lines that did not fit, or could not be written."""
        return self._refused + self._failed

    def write(self, block: bytes) -> None:
        """Have lines written; never waits. One thread at a time."""
        if self._queued == self._taken:
            self._is_full = False
            block = block[self._write_at_once(block) :]
            if not block:
                return
        if self._is_full or self._queued - self._taken + len(block) > MAX_BYTES:
            self._is_full = True
            self._refused += block.count(b"\n")
            return
        self._queued += len(block)
        self._blocks.put(block)
        self._start()

    def _write_at_once(self, block: bytes) -> int:
        """Write what takes no time, into a pipe with room: the thread, asleep, costs half a dozen
        system calls more. Returns how many bytes were written."""
        if NOWAIT is None or not self._is_prompt or self._is_torn or self.dropped != self._told:
            return 0
        try:
            return os.pwritev(self._descriptor, [block], -1, NOWAIT)
        except BlockingIOError:
            return 0
        except OSError:  # files, terminals, and pipes before Linux 6.4, cannot promise that
            self._is_prompt = False
            return 0

    def wait(self, seconds: float) -> bool:
        """Wait until all is written, so long at most; whether it is."""
        if self._queued == self._taken and self.dropped == self._told:
            return True
        done = threading.Event()
        self._blocks.put(done)
        self._start()
        return done.wait(seconds)

    def close(self) -> None:
        """End the thread when it has written all."""
        if self._thread is not None:
            self._blocks.put(None)

    def _start(self) -> None:
        if self._thread is not None:
            return
        thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        # It inherits the mask: signals are for the main thread, which may wait for them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            with suppress(RuntimeError):  # too many threads: the next line tries again
                thread.start()
                self._thread = thread
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _run(self) -> None:
        while (item := self._blocks.get()) is not None:
            if isinstance(item, threading.Event):
                self._tell()
                item.set()
                continue
            if not self._write(item):
                self._failed += item.count(b"\n")
            self._tell()
            self._taken += len(item)
        self._thread = None

    def _tell(self) -> None:
        """Write how many lines were dropped, once those before them are written."""
        dropped = self.dropped
        if dropped == self._told or not self._blocks.empty():
            return
        if self._write(self._dropped_line(dropped - self._told, self._cause)):
            self._told = dropped
            self._cause = UNREAD

    def _write(self, block: bytes) -> bool:
        """Write it; whether that was possible."""
        rest = memoryview(b"\n" + block if self._is_torn else block)
        size = len(rest)
        try:
            while rest:
                with suppress(BlockingIOError):
                    rest = rest[os.write(self._descriptor, rest) :]
                    continue
                self._until_writable()
        except OSError as error:
            self._is_torn = self._is_torn or len(rest) < size
            self._cause = error.strerror or str(error)
            return False
        self._is_torn = False
        return True

    def _until_writable(self) -> None:
        """Some other process has made what it shares with this one non-blocking."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        poll.poll()
