"""Metrics in pieces are the text that prometheus-client writes as a whole."""

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry, Gauge, disable_created_metrics

from router.telemetry import in_pieces
from router.telemetry.in_pieces import PIECE_SAMPLES, text_in_pieces
from router.telemetry.text_format import OPEN_METRICS, PLAIN, TextFormat


def filled(engines: int, counter: type, histogram: type) -> CollectorRegistry:
    """Families with and without labels, for so many engines."""
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    alone = counter("alone", "One line, \\ and\n another.", registry=registry)
    alone.inc(3)
    gauge = Gauge("level", "Read.", ["endpoint"], registry=registry)
    answers = counter("answers", "By engine.", ["endpoint", "status"], registry=registry)
    times = histogram("seconds", "By engine.", ["endpoint"], buckets=(0.1, 1), registry=registry)
    wait = histogram("wait_seconds", "Of all.", registry=registry)
    wait.observe(2.0, {"trace_id": "0af7"})
    for number in range(engines):
        gauge.labels(f"e{number}").set(number)
        answers.labels(f"e{number}", "200").inc(number)
        times.labels(f'"e"{number}').observe(number)
    return registry


@pytest.mark.parametrize("text_format", [PLAIN, OPEN_METRICS])
@pytest.mark.parametrize("engines", [0, 1, PIECE_SAMPLES, 3 * PIECE_SAMPLES + 1])
def test_the_pieces_are_the_whole_and_none_is_long(
    engines: int, text_format: TextFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: 1.0)  # of the exemplars
    whole = filled(engines, prometheus_client.Counter, prometheus_client.Histogram)
    ours = filled(engines, in_pieces.Counter, in_pieces.Histogram)
    pieces = list(text_in_pieces(ours.collect(), text_format))
    assert b"".join(pieces) + text_format.end == text_format.write(whole)
    assert max(piece.count(b"\n") for piece in pieces) <= PIECE_SAMPLES


def test_a_family_is_not_collected_before_its_turn() -> None:
    registry = filled(3 * PIECE_SAMPLES, in_pieces.Counter, in_pieces.Histogram)
    sizes = [len(family.samples) for family in registry.collect() if family.name == "answers"]
    assert sizes == [PIECE_SAMPLES] * 3
