"""The formats of /metrics: Prometheus' plain text, and OpenMetrics, which has exemplars too."""

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

__all__ = ["OPEN_METRICS", "PLAIN", "TextFormat", "accepted"]


@dataclass(frozen=True, slots=True)
class TextFormat:
    """How families are written."""

    content_type: str
    write: Callable[[Collector], bytes]
    end: bytes = b""
    """What stands at the end of all, where `write` puts it too."""


PLAIN = TextFormat("text/plain; version=0.0.4; charset=utf-8", generate_latest)

OPEN_METRICS = TextFormat(openmetrics.CONTENT_TYPE_LATEST, openmetrics.generate_latest, b"# EOF\n")

VERSIONS = ("", "1.0.0")
"""Of OpenMetrics, where it is asked for."""


def accepted(header: str) -> TextFormat:
    """What the Accept header of a scrape prefers, plain text if it says nothing of both.
    Prometheus accepts both and prefers OpenMetrics."""
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
    """How much something is preferred, from 0 (not at all) to 1; what is malformed is 0."""
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if 0.0 <= value <= 1.0 else 0.0
