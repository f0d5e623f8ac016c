"""Log output: lines of text or JSON on standard error."""

import asyncio
import logging
import os
import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from select import PIPE_BUF
from typing import Any

from router.telemetry.line_writer import LineWriter
from router.telemetry.log_words import dumps, flat, pairs, time_of_day

__all__ = ["BatchedHandler", "TextFormatter", "configure", "dropped_lines", "flush", "set_level"]

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
        """Wait until all lines are written; called by logging when the process ends. If nobody
        reads them it does not wait for long."""
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
