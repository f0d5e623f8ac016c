"""Logs: one line per request, as text or as JSON, on standard error."""

import logging
import sys
from typing import Any

import orjson

from router.core.events import Event, RequestEnded

__all__ = ["AccessLog", "configure"]

_access = logging.getLogger("pd_router.access")


class _Text(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", None)
        text = super().format(record)
        return f"{text} {_pairs(fields)}" if fields else text


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


def _pairs(fields: dict[str, Any]) -> str:
    return " ".join(f"{key}={_word(value)}" for key, value in fields.items() if value is not None)


def _word(value: object) -> str:
    """One word: what a client sent must not break the line or look like another field."""
    text = f"{value:.4f}" if isinstance(value, float) else str(value)
    is_plain = text.isascii() and text.isprintable() and not set(' "=') & set(text)
    return text if is_plain else orjson.dumps(text).decode()


def configure(level: str, form: str) -> None:
    """Send all logs to standard error in the chosen form."""
    out = logging.StreamHandler(sys.stderr)
    out.setFormatter(_Json() if form == "json" else _Text())
    logging.basicConfig(level=level.upper(), handlers=[out], force=True)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)


class AccessLog:
    """Writes a line for each request that ended."""

    def observe(self, event: Event) -> None:
        """Log the end of a request; other events are counted, not logged."""
        if isinstance(event, RequestEnded) and _access.isEnabledFor(logging.INFO):
            _access.info("request", extra={"fields": _fields(event)})


def _fields(record: RequestEnded) -> dict[str, Any]:
    return {
        "id": record.request_id,
        "route": record.route,
        "status": record.status,
        "outcome": record.outcome,
        "model": record.model,
        "way": record.way,
        "reason": record.reason or None,
        "tokens": record.tokens,
        "prefill": record.prefill and record.prefill.url,
        "decode": record.decode and record.decode.url,
        "fallbacks": ",".join(f"{f.leg}:{f.reason}" for f in record.fallbacks) or None,
        "prefill_s": record.prefill_seconds,
        "first_byte_s": record.first_byte and record.first_byte - record.started,
        "total_s": record.ended - record.started,
        "chunks": record.chunks,
        "bytes": record.bytes_out,
        "error": record.error,
    }
