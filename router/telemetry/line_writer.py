"""Writes lines to a file descriptor without ever blocking the event loop, with a thread if needed:
a log that nobody reads, or a slow or full disk, must not stop the streams."""

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
"""Most bytes of unwritten lines: several seconds of a worker under full load, as when a log
collector pauses to rotate files. A line has at least about a hundred bytes, so their number is
bounded too."""

NOWAIT: Final[int | None] = getattr(os, "RWF_NOWAIT", None)
"""None if Python was built for another system than Linux, or with an older C library."""

UNREAD: Final = "it was not read fast enough"


class LineWriter:
    """Writes blocks of complete lines in order, each with one system call.

    When the buffer is full, lines are dropped until all of it is written, so that there is one gap
    instead of many. Then `dropped_line` creates a line with their number and the cause.
    """

    # Each count is changed by only one thread, so no lock is needed, in particular not on the event
    # loop.

    def __init__(self, descriptor: int, dropped_line: Callable[[int, str], bytes]) -> None:
        self._descriptor = descriptor
        self._dropped_line = dropped_line
        self._blocks: queue.SimpleQueue[bytes | threading.Event | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_full = False
        self._queued = self._refused = 0
        """Bytes queued and lines refused; changed by the thread that logs."""
        self._taken = self._failed = self._told = 0
        """Bytes taken, lines failed and lines reported; changed by the writing thread."""
        self._cause = UNREAD
        self._is_prompt = True
        """Whether the descriptor supports writes that do not block."""
        self._is_torn = False
        """Whether the last write ended within a line."""

    @property
    def dropped(self) -> int:
        """Number of lines that did not fit or could not be written."""
        return self._refused + self._failed

    def write(self, block: bytes) -> None:
        """Write lines, without waiting. Only one thread at a time may call this."""
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
        """Write as much as is possible without blocking, such as into a pipe with room. Waking the
        thread costs half a dozen system calls more. Returns the number of bytes written."""
        if NOWAIT is None or not self._is_prompt or self._is_torn or self.dropped != self._told:
            return 0
        try:
            return os.pwritev(self._descriptor, [block], -1, NOWAIT)
        except BlockingIOError:
            return 0
        except OSError:  # not supported by files, terminals, and pipes before Linux 6.4
            self._is_prompt = False
            return 0

    def wait(self, seconds: float) -> bool:
        """Wait for up to `seconds` until everything is written. Returns whether it is."""
        if self._queued == self._taken and self.dropped == self._told:
            return True
        done = threading.Event()
        self._blocks.put(done)
        self._start()
        return done.wait(seconds)

    def close(self) -> None:
        """End the thread once it has written everything."""
        if self._thread is not None:
            self._blocks.put(None)

    def _start(self) -> None:
        if self._thread is not None:
            return
        thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        # The thread inherits the signal mask: signals must go to the main thread, which may wait
        # for them.
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
        """Write how many lines were dropped, after all earlier lines were written."""
        dropped = self.dropped
        if dropped == self._told or not self._blocks.empty():
            return
        if self._write(self._dropped_line(dropped - self._told, self._cause)):
            self._told = dropped
            self._cause = UNREAD

    def _write(self, block: bytes) -> bool:
        """Write a block. Returns whether that was possible."""
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
        """Wait until the descriptor is writable: another process that shares it has made it
        non-blocking."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        poll.poll()
