"""Where logs go: to standard error, as text or as JSON, a line each."""

import asyncio
import logging
import sys
from collections.abc import Iterable, Iterator
from select import PIPE_BUF
from typing import Any

from router.telemetry.log_words import dumps, flat, pairs, time_of_day

__all__ = ["BatchedHandler", "TextFormatter", "configure", "set_level"]

FLUSH_SECONDS = 0.1
"""Longest delay of a line: thousands of requests share one write."""


class TextFormatter(logging.Formatter):
    """Time, level, message and the fields as words; a traceback follows in indented lines."""

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


class BatchedHandler(logging.StreamHandler[Any]):
    """Writes lines in batches, one system call each; a warning at once."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self._lines: list[str] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Buffer the line."""
        try:
            self.add(self.format(record))
            if record.levelno >= logging.WARNING:
                self.flush()
        except Exception:  # noqa: BLE001 - logging's contract: a line is lost, never a request
            self.handleError(record)

    def add(self, line: str) -> None:
        """Buffer a line."""
        self._lines.append(line)
        if self._loop is None or self._loop.is_closed():
            self._loop = _running_loop()
            if self._loop is None:
                self.flush()
            else:
                self._loop.call_later(FLUSH_SECONDS, self._flush_later)

    def flush(self) -> None:
        """Write the buffered lines."""
        lines, self._lines = self._lines, []
        for block in _blocks(lines):
            self.stream.write(block)
            super().flush()

    def _flush_later(self) -> None:
        self._loop = None
        self.flush()


def _blocks(lines: Iterable[str]) -> Iterator[str]:
    """Join lines into blocks that a pipe takes atomically: other processes write into it, too."""
    block: list[str] = []
    size = 0
    for line in lines:
        size += len(line) + 1
        if size > PIPE_BUF and block:
            yield "\n".join([*block, ""])
            block, size = [], len(line) + 1
        block.append(line)
    if block:
        yield "\n".join([*block, ""])


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def configure(level: str, form: str) -> None:
    """Send all logs to standard error in the chosen form."""
    out = BatchedHandler()
    out.setFormatter(_Json() if form == "json" else TextFormatter())
    logging.basicConfig(handlers=[out], force=True)
    # Fields that no format shows are not collected (the logging HOWTO's "Optimization").
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # noqa: SLF001
    set_level(level)


def set_level(level: str) -> None:
    """Log from this level on."""
    logging.getLogger().setLevel(level.upper())
    # uvicorn's info messages are about its own start and end; the router logs where it listens.
    logging.getLogger("uvicorn.error").setLevel(max(logging.WARNING, logging.getLogger().level))
