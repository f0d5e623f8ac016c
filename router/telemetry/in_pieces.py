"""Metrics that are collected and written in pieces.

With a thousand engines /metrics has 40,000 samples, which takes a second. A thread would not help:
it would hold the interpreter's lock for 5 ms each time the event loop uses a socket.
"""

from collections.abc import Iterable, Iterator
from copy import copy
from itertools import islice

import prometheus_client
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from router.telemetry.text_format import TextFormat

__all__ = ["PIECE_SAMPLES", "Counter", "Histogram", "in_families", "text_in_pieces"]

PIECE_SAMPLES = 250
"""Samples that are written at a time, in about 5 ms."""


class _InPieces(MetricWrapperBase):
    """Yields a family as several families of the same name. (Names that begin with _ are
    prometheus-client's.)"""

    def collect(self) -> Iterator[Metric]:
        """Yields the current samples; at least one family, also if it has none."""
        family: Metric = self._get_metric()  # type: ignore[no-untyped-call]
        samples = (each._replace(name=self._name + each.name) for each in self._samples())
        return in_families(family, samples)


class Counter(_InPieces, prometheus_client.Counter):
    """prometheus-client's Counter, collected in pieces."""


class Histogram(_InPieces, prometheus_client.Histogram):
    """prometheus-client's Histogram, collected in pieces."""


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
