"""The page for Prometheus: its formats, and how it is written in pieces.

With a thousand engines /metrics has 40,000 samples, which takes a second. A thread would not help:
it would hold the interpreter's lock for 5 ms each time the event loop uses a socket.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from itertools import islice

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

__all__ = [
    "OPEN_METRICS",
    "PIECE_SAMPLES",
    "PLAIN",
    "TextFormat",
    "accepted",
    "in_families",
    "in_turns",
    "text_in_pieces",
]

PIECE_SAMPLES = 250
"""Samples that are written at a time, in about 5 ms."""

TURN_SECONDS = 0.01
"""Seconds per turn of the event loop for generating pieces of a page. With 1,000 engines a page
takes a hundred turns, which are long in a busy loop; shorter ones would exceed Prometheus' scrape
time-out of 10 s."""


@dataclass(frozen=True, slots=True)
class TextFormat:
    """A format in which families are written."""

    content_type: str
    write: Callable[[Collector], bytes]
    end: bytes = b""
    """The end of the page, for formats in which `write` adds one."""


PLAIN = TextFormat("text/plain; version=0.0.4; charset=utf-8", generate_latest)

OPEN_METRICS = TextFormat(openmetrics.CONTENT_TYPE_LATEST, openmetrics.generate_latest, b"# EOF\n")

VERSIONS = ("", "1.0.0")
"""Supported versions of OpenMetrics, as requested by the scraper."""


def accepted(header: str) -> TextFormat:
    """The format that a scrape's Accept header prefers; plain text if it names neither. Prometheus
    accepts both and prefers OpenMetrics."""
    openmetrics_quality = plain_quality = 0.0
    for each in header.lower().split(","):
        media_type, *parameters = (part.strip() for part in each.split(";"))
        given = {
            name: value.strip('"') for name, _, value in (p.partition("=") for p in parameters)
        }
        quality = _quality(given.get("q", "1"))
        if media_type == "application/openmetrics-text" and given.get("version", "") in VERSIONS:
            openmetrics_quality = max(openmetrics_quality, quality)
        elif media_type == "text/plain":
            plain_quality = max(plain_quality, quality)
    is_preferred = openmetrics_quality > 0.0 and openmetrics_quality >= plain_quality
    return OPEN_METRICS if is_preferred else PLAIN


def _quality(text: str) -> float:
    """The quality value of a media range, from 0 (not accepted) to 1; 0 if malformed."""
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if 0.0 <= value <= 1.0 else 0.0


def in_families(family: Metric, samples: Iterable[Sample]) -> Iterator[Metric]:
    """Yields families with some of the samples each; at least one, also if there are none."""
    rest, is_first = iter(samples), True
    while (found := list(islice(rest, PIECE_SAMPLES))) or is_first:
        is_first, piece = False, copy(family)
        piece.samples = found
        yield piece


def text_in_pieces(families: Iterable[Metric | None], text_format: TextFormat) -> Iterator[bytes]:
    """Yields what generate_latest returns, without its end, in pieces. Consecutive families of the
    same name are joined. A None among the families becomes an empty piece: the next one takes a
    while."""
    last = ""
    for family in families:
        if family is None:
            yield b""
            continue
        head = _text(family, [], text_format)
        if family.name != last:
            yield head
        last, samples = family.name, iter(family.samples)
        while found := list(islice(samples, PIECE_SAMPLES)):
            yield _text(family, found, text_format).removeprefix(head)


async def in_turns(pieces: Iterable[bytes]) -> bytes:
    """Joins all pieces, generated a few per turn of the event loop, so that streams continue in
    between."""
    found, until = [], time.monotonic() + TURN_SECONDS
    for piece in pieces:
        found.append(piece)
        if time.monotonic() >= until:
            await asyncio.sleep(0)
            until = time.monotonic() + TURN_SECONDS
    return b"".join(found)


def _text(family: Metric, samples: list[Sample], text_format: TextFormat) -> bytes:
    """The text of the family with only these samples."""
    one, registry = copy(family), CollectorRegistry()
    one.samples = samples
    registry.register(_Only(one))
    return text_format.write(registry).removesuffix(text_format.end)


class _Only(Collector):
    """A collector of one family."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        """Yields the family."""
        yield self._family
