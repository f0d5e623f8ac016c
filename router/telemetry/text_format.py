"""The formats of /metrics: Prometheus' text format, and OpenMetrics, which also has exemplars."""

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

__all__ = ["OPEN_METRICS", "PLAIN", "TextFormat", "accepted"]


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
