"""/metrics in the format that is asked for, in pieces that are prometheus-client's text."""

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from router.telemetry.exposition import (
    OPEN_METRICS,
    PIECE_SAMPLES,
    PLAIN,
    TextFormat,
    accepted,
    in_families,
    text_in_pieces,
)

OURS = "application/openmetrics-text"
PROMETHEUS = (
    f"{OURS};version=1.0.0;escaping=allow-utf-8;q=0.6,{OURS};version=0.0.1;q=0.5,"
    "text/plain;version=1.0.0;q=0.4,*/*;q=0.2"
)


@pytest.mark.parametrize(
    "header",
    [
        *(PROMETHEUS, OURS, OURS.upper(), f'{OURS}; version="1.0.0"', f"text/plain , {OURS} ; q=1"),
        f"{OURS};q=0.2,text/plain;q=0.1",
    ],
)
def test_openmetrics_is_given_where_it_is_accepted(header: str) -> None:
    assert accepted(header) is OPEN_METRICS


@pytest.mark.parametrize(
    "header",
    [
        *("", "*/*", "text/plain;version=0.0.4", "application/*", ";", ",,;=;", "\0"),
        *(f"{OURS};version=2.0.0", f"{OURS};version=0.0.1", f"{OURS};version=x\r\ny"),
        *(f"{OURS};q=0", f"{OURS};q=x", f"{OURS};q=nan", f"{OURS};q=2"),
        f"text/plain;version=0.0.4;q=0.9,{OURS};q=0.8",
    ],
)
def test_all_else_gets_plain_text(header: str) -> None:
    assert accepted(header) is PLAIN


def filled(engines: int) -> CollectorRegistry:
    """Families with and without labels, for so many engines."""
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    alone = Counter("alone", "One line, \\ and\n another.", registry=registry)
    alone.inc(3)
    gauge = Gauge("level", "Read.", ["endpoint"], registry=registry)
    answers = Counter("answers", "By engine.", ["endpoint", "status"], registry=registry)
    times = Histogram("seconds", "By engine.", ["endpoint"], buckets=(0.1, 1), registry=registry)
    wait = Histogram("wait_seconds", "Of all.", registry=registry)
    wait.observe(2.0, {"trace_id": "0af7"})
    for number in range(engines):
        gauge.labels(f"e{number}").set(number)
        answers.labels(f"e{number}", "200").inc(number)
        times.labels(f'"e"{number}').observe(number)
    return registry


@pytest.mark.parametrize("text_format", [PLAIN, OPEN_METRICS])
@pytest.mark.parametrize("engines", [0, 1, PIECE_SAMPLES, 3 * PIECE_SAMPLES + 1])
def test_the_pieces_are_the_whole_and_none_is_long(engines: int, text_format: TextFormat) -> None:
    registry = filled(engines)
    families = (
        piece for family in registry.collect() for piece in in_families(family, family.samples)
    )
    pieces = list(text_in_pieces(families, text_format))
    assert b"".join(pieces) + text_format.end == text_format.write(registry)
    assert max(piece.count(b"\n") for piece in pieces) <= PIECE_SAMPLES
