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

VERSIONS = (None, "0.0.1", "1.0.0")
"""Of OpenMetrics: who asks for the draft takes the first one, as with Prometheus' own exporters."""


def accepted(header: str) -> TextFormat:
    """What the Accept header of a scrape asks for. Prometheus accepts both, OpenMetrics rather."""
    for each in header.split(","):
        media_type, *parameters = (part.strip() for part in each.split(";"))
        given = dict(parameter.partition("=")[::2] for parameter in parameters)
        if media_type == "application/openmetrics-text" and given.get("version") in VERSIONS:
            return OPEN_METRICS
    return PLAIN
