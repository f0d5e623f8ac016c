"""Metrics that are collected and written piece by piece.

With a thousand engines /metrics has 40,000 samples, and as a whole it takes a second. A thread
would not help: it gets the interpreter's lock for 5 ms whenever the event loop uses a socket.
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
"""Samples that are written in one go: some 5 ms."""


class _InPieces(MetricWrapperBase):
    """Yields a family as several of the same name. (What begins with _ is prometheus-client's.)"""

    def collect(self) -> Iterator[Metric]:
        """The current samples; one family at least, also of none."""
        family: Metric = self._get_metric()  # type: ignore[no-untyped-call]
        samples = (each._replace(name=self._name + each.name) for each in self._samples())
        return in_families(family, samples)


class Counter(_InPieces, prometheus_client.Counter):
    """prometheus-client's."""


class Histogram(_InPieces, prometheus_client.Histogram):
    """prometheus-client's."""


def in_families(family: Metric, samples: Iterable[Sample]) -> Iterator[Metric]:
    """The family with these samples as several with some each; one at least, also of none."""
    rest, is_first = iter(samples), True
    while (found := list(islice(rest, PIECE_SAMPLES))) or is_first:
        is_first, piece = False, copy(family)
        piece.samples = found
        yield piece


def text_in_pieces(families: Iterable[Metric | None], text_format: TextFormat) -> Iterator[bytes]:
    """What generate_latest gives but for the end, in pieces; families of the same name in a row
    become one. None of them is a piece without text: the next one takes a while."""
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
    """Of the family with these samples only."""
    one, registry = copy(family), CollectorRegistry()
    one.samples = samples
    registry.register(_Only(one))
    return text_format.write(registry).removesuffix(text_format.end)


class _Only(Collector):
    """One family."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        """It."""
        yield self._family
