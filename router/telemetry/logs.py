"""Log output: lines of text or JSON on standard error, written without blocking the event loop."""

import asyncio
import logging
import os
import queue
import select
import signal
import sys
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from select import PIPE_BUF
from typing import Any, Final

from router.telemetry.log_words import dumps, flat, pairs, time_of_day

__all__ = [
    "MAX_BYTES",
    "BatchedHandler",
    "LineWriter",
    "TextFormatter",
    "configure",
    "dropped_lines",
    "flush",
    "set_level",
]

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
        self._taken = self._failed = self._reported = 0
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
        if NOWAIT is None or not self._is_prompt or self._is_torn or self.dropped != self._reported:
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
        if self._queued == self._taken and self.dropped == self._reported:
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
                self._report()
                item.set()
                continue
            if not self._write(item):
                self._failed += item.count(b"\n")
            self._report()
            self._taken += len(item)
        self._thread = None

    def _report(self) -> None:
        """Write how many lines were dropped, after all earlier lines were written."""
        dropped = self.dropped
        if dropped == self._reported or not self._blocks.empty():
            return
        if self._write(self._dropped_line(dropped - self._reported, self._cause)):
            self._reported = dropped
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


FLUSH_SECONDS = 0.1
"""Longest delay of a line in seconds, so that thousands of requests share one write."""

END_SECONDS = 2.0
"""Seconds for the last lines to be written when the process ends; service managers may wait for
ten."""


class TextFormatter(logging.Formatter):
    """Formats time, level, message and fields; a traceback follows in indented lines."""

    def format(self, record: logging.LogRecord) -> str:
        text = f"{time_of_day(record.created)} {record.levelname:<7} {flat(record.getMessage())}"
        if fields := getattr(record, "fields", None):
            text = f"{text} {pairs(fields)}"
        if record.exc_info:
            trace = self.formatException(record.exc_info)
            text = "\n    ".join([text, *map(flat, trace.split("\n"))])
        return text


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time_of_day(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return dumps(line)


class BatchedHandler(logging.Handler):
    """Passes lines in batches to a thread that writes them, and warnings at once.

    A forked process has a thread of its own, and leaves the parent's unwritten lines to the parent.
    """

    def __init__(self) -> None:
        super().__init__()
        self._begin()
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._lines: list[bytes] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._writer = None
        if sys.stderr is not None:  # if it was closed before, the descriptor may be a client's
            self._writer = LineWriter(sys.stderr.fileno(), self._dropped_line)

    @property
    def dropped(self) -> int:
        """Number of this process's lines that were dropped."""
        return 0 if self._writer is None else self._writer.dropped

    def emit(self, record: logging.LogRecord) -> None:
        """Format and buffer a record."""
        try:
            self.add(self.format(record))
            if record.levelno >= logging.WARNING:
                self._pass_on()
        except Exception:  # noqa: BLE001 - logging's contract: a line is lost, never a request
            self.handleError(record)

    def add(self, line: str) -> None:
        """Buffer a line."""
        self._lines.append(f"{line}\n".encode(errors="backslashreplace"))
        if self._loop is None or self._loop.is_closed():
            self._loop = _running_loop()
            if self._loop is None:
                self._pass_on()
            else:
                self._loop.call_later(FLUSH_SECONDS, self._pass_on_later)

    def flush(self) -> None:
        """Wait until all lines are written; called by logging when the process ends. If they
        are not read it does not wait for long."""
        self._pass_on()
        if self._writer is not None:
            self._writer.wait(END_SECONDS)

    def close(self) -> None:
        """End the thread; called by logging when the process ends."""
        super().close()
        if self._writer is not None:
            self._writer.close()

    def _pass_on(self) -> None:
        self.acquire()
        try:
            lines, self._lines = self._lines, []
            if self._writer is not None:
                for block in _blocks(lines):
                    self._writer.write(block)
        finally:
            self.release()

    def _pass_on_later(self) -> None:
        self._loop = None
        self._pass_on()

    def _dropped_line(self, count: int, cause: str) -> bytes:
        """The line about `count` dropped lines; called in the writing thread."""
        text = "%d lines of this log are missing: %s"
        record = logging.LogRecord(__name__, logging.WARNING, "", 0, text, (count, cause), None)
        return f"{self.format(record)}\n".encode()


def _blocks(lines: Sequence[bytes]) -> Iterator[bytes]:
    """Join lines into blocks that a pipe takes atomically, because other processes write to it
    too."""
    ends = [*accumulate(map(len, lines))]
    first = written = 0
    while first < len(lines):
        end = max(bisect_right(ends, written + PIPE_BUF), first + 1)
        yield b"".join(lines[first:end])
        first, written = end, ends[end - 1]


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def configure(level: str, form: str) -> None:
    """Send all logs to standard error in the given format."""
    out = BatchedHandler()
    out.setFormatter(_Json() if form == "json" else TextFormatter())
    logging.basicConfig(handlers=[out], force=True)
    # Do not collect fields that no format uses (the logging HOWTO's "Optimization").
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # noqa: SLF001
    set_level(level)


def flush() -> None:
    """Write all lines, if they are read, before something else writes to the descriptor."""
    for handler in logging.getLogger().handlers:
        handler.flush()


def dropped_lines() -> int:
    """Number of lines of this process that were dropped or could not be written."""
    handlers = logging.getLogger().handlers
    return sum(handler.dropped for handler in handlers if isinstance(handler, BatchedHandler))


def set_level(level: str) -> None:
    """Set the log level."""
    logging.getLogger().setLevel(level.upper())
    # uvicorn's info messages are about its start and end; the router itself logs where it listens.
    logging.getLogger("uvicorn.error").setLevel(max(logging.WARNING, logging.getLogger().level))
