"""When engines were gone, and which streams failed for another reason."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

__all__ = ["Outages"]


class Span(NamedTuple):
    """A time; the clock is monotonic."""

    begin: float
    end: float = math.inf


class Outages:
    """A stream may fail if an engine that it was on, by the router's log, was gone meanwhile."""

    def __init__(self) -> None:
        self._gone: dict[str, list[Span]] = {}
        self._failed: dict[str, Span] = {}
        self._wrong: list[str] = []

    def gone(self, url: str, now: float) -> None:
        """An engine is taken down."""
        self._gone.setdefault(url, []).append(Span(now))

    def back(self, url: str, now: float) -> None:
        """It is back."""
        self._gone[url][-1] = self._gone[url][-1]._replace(end=now)

    def failed(self, request_id: str, begin: float, end: float) -> None:
        """A stream has failed, which ran then."""
        self._failed[request_id] = Span(begin, end)

    def explain(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Take the log's lines of requests; those of streams that failed name their engines."""
        for line in lines:
            span = self._failed.pop(line["id"], None)
            if span is not None and not any(
                self._was_gone(line[role], span) for role in ("prefill", "decode")
            ):
                self._wrong.append(f"a stream failed, and its engines were there: {line}")

    @property
    def open(self) -> set[str]:
        """Streams that failed and have had no line so far, by their request ids."""
        return set(self._failed)

    @property
    def wrong(self) -> list[str]:
        """What no engine is to blame for, when the last lines have come."""
        return [*self._wrong, *(f"{name} failed, and has no line" for name in self._failed)]

    def _was_gone(self, url: str | None, span: Span) -> bool:
        gone = self._gone.get(url or "", ())
        return any(each.begin <= span.end and each.end >= span.begin for each in gone)
