"""Logs: one line per request, as text or as JSON, on standard error.

A request that failed by no fault of its client, or took another way than planned, is a warning.
Text from clients and engines is escaped: it can neither break nor forge a line, nor control a
terminal, and every line of JSON is valid.
"""

import asyncio
import json
import logging
import re
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from select import PIPE_BUF
from typing import Any

import orjson

from router.core.events import Chosen, Decided, Event, RequestEnded

__all__ = ["AccessLog", "configure", "set_level"]

# Printable ASCII except space, quotes and the equals sign.
_PLAIN = re.compile(r"""[!#-<>-~]+""")

FLUSH_SECONDS = 0.1
"""Longest delay of a line: thousands of requests share one write."""

MAX_ENGINES = 10_000
"""Engines and pairs of engines whose words are kept: a megabyte or two."""

SAMPLED = (Chosen, Decided)

_access = logging.getLogger("pd_router.access")


class _Text(logging.Formatter):
    """Time, level, message and the fields as words; a traceback follows in indented lines."""

    def format(self, record: logging.LogRecord) -> str:
        text = f"{_time(record.created)} {record.levelname:<7} {_flat(record.getMessage())}"
        if fields := getattr(record, "fields", None):
            text = f"{text} {_pairs(fields)}"
        if record.exc_info:
            trace = self.formatException(record.exc_info)
            text = "\n    ".join([text, *map(_flat, trace.split("\n"))])
        return text


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return _dumps(line)


def _dumps(line: dict[str, Any]) -> str:
    try:
        return orjson.dumps(line, default=str).decode()
    except TypeError:  # a lone surrogate, or an integer over 64 bits
        return orjson.dumps({key: _utf8(str(value)) for key, value in line.items()}).decode()


def _time(created: float) -> str:
    """UTC to the millisecond: replicas' lines sort together."""
    moment = datetime.fromtimestamp(created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _utf8(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def _flat(text: str) -> str:
    """`text` without line ends and control characters, those of Unicode included."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _pairs(fields: dict[str, Any]) -> str:
    return " ".join(f"{key}={_word(value)}" for key, value in fields.items() if value is not None)


def _word(value: object) -> str:
    """One word: a client's text must not look like another field."""
    if isinstance(value, float):
        return f"{value:.4f}"
    text = str(value)
    if text.isalnum() and text.isascii():  # most are, and the pattern takes ten times as long
        return text
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


class _Batched(logging.StreamHandler[Any]):
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
    out = _Batched()
    out.setFormatter(_Json() if form == "json" else _Text())
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


class AccessLog:
    """Writes a line for each request that ended.

    It goes straight to the handler: a LogRecord costs three times as much as the line.
    """

    def __init__(self) -> None:
        self._words_of_kind: dict[tuple[object, ...], tuple[str, str, str]] = {}
        self._words_of_engines: dict[tuple[object, ...], str] = {}
        self._epoch = 0.0
        """When the monotonic clock stood at 0, as time of day."""
        self._second = 0
        self._time = ""

    def observe(self, events: Iterable[Event]) -> None:
        """Log the ends of requests and sampled choices; other events are counted, not logged."""
        if not _access.isEnabledFor(logging.WARNING):
            return
        is_info = _access.isEnabledFor(logging.INFO)
        self._epoch = time.time() - time.monotonic()  # noqa: TID251 - a line tells time of day
        ours = [
            (handler.add, self._text if isinstance(handler.formatter, _Text) else self._json)
            for handler in logging.getLogger().handlers
            if isinstance(handler, _Batched)
        ]
        for event in events:
            if isinstance(event, RequestEnded):
                if not (is_info or event.is_bad):
                    continue
                for add, line_of in ours:
                    add(line_of(event))
                if not ours:  # logging was not set up by `configure`
                    level = logging.WARNING if event.is_bad else logging.INFO
                    _access.log(level, "request", extra={"fields": _fields(event)})
            elif isinstance(event, SAMPLED) and is_info:
                name, fields = _sampled(event)
                _access.info(name, extra={"fields": fields})

    def _day(self, monotonic: float) -> str:
        """The time of day of an event, which is told some time after it happened."""
        at = self._epoch + monotonic
        second = int(at)
        if second != self._second:
            self._second, self._time = second, _time(second).removesuffix("000Z")
        return f"{self._time}{int(at % 1 * 1000):03d}Z"

    def _json(self, event: RequestEnded) -> str:
        line = {
            "time": self._day(event.ended),
            "level": "warning" if event.is_bad else "info",
            "logger": _access.name,
            "message": "request",
        }
        return _dumps({**line, **_fields(event)})

    def _text(self, e: RequestEnded) -> str:
        """As _Text writes _fields; a test compares them."""
        # Clients name requests and models: what is kept is bounded by the code and configuration.
        kind = e.route, e.status, e.outcome, e.mode, e.reason
        words = self._words_of_kind.get(kind)
        if words is None:
            words = self._words_of_kind[kind] = _words_of_kind(e)
        engines = e.prefill, e.decode
        names = self._words_of_engines.get(engines)
        if names is None:
            if len(self._words_of_engines) >= MAX_ENGINES:  # engines come and go
                self._words_of_engines.clear()
            names = self._words_of_engines[engines] = _words_of_engines(e)
        model = "" if e.api_key is None else f" api_key={e.api_key}"
        if e.model is not None:
            model += f" model={_word(e.model)}"
        level, before, behind = words
        if e.fallbacks:
            level = "WARNING"
        more = f" fallbacks={_word(_fallbacks(e))}" if e.fallbacks else ""
        if e.queue_seconds is not None:
            more += f" queue_s={e.queue_seconds:.4f}"
        if e.prefill_seconds is not None:
            more += f" prefill_s={e.prefill_seconds:.4f}"
        if e.first_byte is not None:
            more += f" first_byte_s={e.first_byte - e.started:.4f}"
        error = "" if e.error is None else f" error={_word(e.error)}"
        return (
            f"{self._day(e.ended)} {level} request id={_word(e.request_id)}{before}{model}{behind}"
            f" tokens={e.tokens}{names}{more}"
            f" total_s={e.ended - e.started:.4f} chunks={e.chunks} bytes={e.bytes_out}{error}"
        )


def _words_of_kind(e: RequestEnded) -> tuple[str, str, str]:
    """The level but for fallbacks, and what stands before the model's name and behind it."""
    level = "WARNING" if e.has_failed else "INFO   "
    behind = "" if e.mode is None else f" mode={e.mode}"
    behind += f" reason={e.reason}" if e.reason else ""
    return level, f" route={e.route} status={e.status} outcome={e.outcome}", behind


def _words_of_engines(e: RequestEnded) -> str:
    words = "" if e.prefill is None else f" prefill={_word(e.prefill.url)}"
    return words if e.decode is None else f"{words} decode={_word(e.decode.url)}"


def _sampled(event: Chosen | Decided) -> tuple[str, dict[str, Any]]:
    """What the line is called, and what it tells."""
    if isinstance(event, Chosen):
        return "choice", _choice(event)
    return "decision", _decision(event)


def _choice(chosen: Chosen) -> dict[str, Any]:
    return {
        "id": chosen.request_id,
        "role": chosen.role,
        "chosen": chosen.endpoint.url,
        "candidates": "; ".join(chosen.candidates),
    }


def _decision(decided: Decided) -> dict[str, Any]:
    decision, delay = decided.decision, decided.decision.delay
    sums = {} if delay is None else {"direct_s": delay.direct, "remote_s": delay.remote}
    return {
        "id": decided.request_id,
        "mode": decision.mode,
        "reason": decision.reason,
        **sums,
    }


def _fallbacks(record: RequestEnded) -> str:
    return ",".join(f"{fallback.leg}:{fallback.reason}" for fallback in record.fallbacks)


def _fields(record: RequestEnded) -> dict[str, Any]:
    return {
        "id": record.request_id,
        "route": record.route,
        "status": record.status,
        "outcome": record.outcome,
        "api_key": record.api_key,
        "model": record.model,
        "mode": record.mode,
        "reason": record.reason or None,
        "tokens": record.tokens,
        "prefill": record.prefill and record.prefill.url,
        "decode": record.decode and record.decode.url,
        "fallbacks": _fallbacks(record) or None,
        "queue_s": record.queue_seconds,
        "prefill_s": record.prefill_seconds,
        "first_byte_s": None if record.first_byte is None else record.first_byte - record.started,
        "total_s": record.ended - record.started,
        "chunks": record.chunks,
        "bytes": record.bytes_out,
        "error": record.error,
    }
