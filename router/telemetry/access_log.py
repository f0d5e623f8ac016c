"""The access log: one line per request, and sampled routing decisions.

A request that failed for another reason than its client, or that fell back, is logged as a warning.
"""

import logging
import time
from collections.abc import Iterable
from typing import Any

from router.core.events import Chosen, Decided, Event, RequestEnded
from router.telemetry.log_words import dumps, time_of_day, word
from router.telemetry.logs import BatchedHandler, TextFormatter

__all__ = ["AccessLog"]

MAX_ENGINES = 10_000
"""Most engines and pairs of engines whose text is cached; that takes a megabyte or two."""

MILLISECONDS = [f"{number:03d}Z" for number in range(1000)]
"""The ends of timestamps. A table, because formatting one takes as long as half a line."""

SAMPLED = (Chosen, Decided)

_access = logging.getLogger("pd_router.access")


class AccessLog:
    """Writes a line for each request that has ended.

    It writes directly to the handler, because a LogRecord costs three times as much as the line.
    """

    def __init__(self) -> None:
        self._words_of_kind: dict[tuple[object, ...], tuple[str, str, str]] = {}
        self._words_of_engines: dict[tuple[object, ...], str] = {}
        self._epoch = 0.0
        """Time of day at which the monotonic clock was 0, in seconds."""
        self._second = 0
        self._time = ""

    def observe(self, events: Iterable[Event]) -> None:
        """Log ended requests and sampled decisions. Other events are counted, not logged."""
        if not _access.isEnabledFor(logging.WARNING):
            return
        is_info = _access.isEnabledFor(logging.INFO)
        self._epoch = time.time() - time.monotonic()  # noqa: TID251 - lines have the time of day
        ours = [
            (handler.add, self._text if _is_text(handler) else self._json)
            for handler in logging.getLogger().handlers
            if isinstance(handler, BatchedHandler)
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
        """The timestamp of an event, which is logged some time after it happened."""
        at = self._epoch + monotonic
        second = int(at)
        if second != self._second:
            self._second, self._time = second, time_of_day(second).removesuffix("000Z")
        return self._time + MILLISECONDS[int(at % 1 * 1000)]

    def _json(self, event: RequestEnded) -> str:
        line = {
            "time": self._day(event.ended),
            "level": "warning" if event.is_bad else "info",
            "logger": _access.name,
            "message": "request",
        }
        return dumps({**line, **_fields(event)})

    def _text(self, e: RequestEnded) -> str:
        """The line in text format. Written like `_fields` by `_Text`, but faster; a test compares
        them."""
        # Request ids and models come from clients and are not cached; what is cached is bounded by
        # code and configuration.
        kind = e.route, e.status, e.outcome, e.mode, e.reason
        words = self._words_of_kind.get(kind)
        if words is None:
            words = self._words_of_kind[kind] = _words_of_kind(e)
        engines = e.encode, e.prefill, e.decode
        names = self._words_of_engines.get(engines)
        if names is None:
            if len(self._words_of_engines) >= MAX_ENGINES:  # engines join and leave
                self._words_of_engines.clear()
            names = self._words_of_engines[engines] = _words_of_engines(e)
        model = "" if e.api_key is None else f" api_key={e.api_key}"
        if e.model is not None:
            model += f" model={word(e.model)}"
        level, before, behind = words
        if e.fallbacks:
            level = "WARNING"
        more = f" fallbacks={word(_fallbacks(e))}" if e.fallbacks else ""
        if e.continuation is not None:
            more += f" continuation={e.continuation.outcome} pause_s={e.continuation.pause:.4f}"
        if e.queue_seconds is not None:
            more += f" queue_s={e.queue_seconds:.4f}"
        if e.prefill_seconds is not None:
            more += f" prefill_s={e.prefill_seconds:.4f}"
        # These two are in every line, and `%` takes two thirds of the time of an f-string.
        if e.first_byte is not None:
            more += " first_byte_s=%.4f" % (e.first_byte - e.started)
        error = "" if e.error is None else f" error={word(e.error)}"
        # `headers.clean_request_id` leaves no other character that would need quotes.
        request_id = word(e.request_id) if "=" in e.request_id else e.request_id
        total = "%.4f" % (e.ended - e.started)
        return (
            f"{self._day(e.ended)} {level} request id={request_id}{before}{model}{behind}"
            f" tokens={e.tokens}{names}{more}"
            f" total_s={total} chunks={e.chunks} bytes={e.bytes_out}{error}"
        )


def _is_text(handler: BatchedHandler) -> bool:
    return isinstance(handler.formatter, TextFormatter)


def _words_of_kind(e: RequestEnded) -> tuple[str, str, str]:
    """The level (apart from fallbacks), and the text before the model's name and after it."""
    level = "WARNING" if e.has_failed else "INFO   "
    behind = "" if e.mode is None else f" mode={e.mode}"
    behind += f" reason={e.reason}" if e.reason else ""
    return level, f" route={e.route} status={e.status} outcome={e.outcome}", behind


def _words_of_engines(e: RequestEnded) -> str:
    found = (("encode", e.encode), ("prefill", e.prefill), ("decode", e.decode))
    return "".join(f" {name}={word(each.url)}" for name, each in found if each is not None)


def _sampled(event: Chosen | Decided) -> tuple[str, dict[str, Any]]:
    """The message and the fields of a sampled decision's line."""
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
        "encode": record.encode and record.encode.url,
        "prefill": record.prefill and record.prefill.url,
        "decode": record.decode and record.decode.url,
        "fallbacks": _fallbacks(record) or None,
        "continuation": record.continuation and record.continuation.outcome,
        "pause_s": record.continuation and record.continuation.pause,
        "queue_s": record.queue_seconds,
        "prefill_s": record.prefill_seconds,
        "first_byte_s": None if record.first_byte is None else record.first_byte - record.started,
        "total_s": record.ended - record.started,
        "chunks": record.chunks,
        "bytes": record.bytes_out,
        "error": record.error,
    }
