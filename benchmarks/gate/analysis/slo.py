"""Goodput: the number of requests that met all limits.

Pure. `ttft:2000` requires a first token within 2000 ms. One request must meet all limits; a failed
request meets none.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from benchmarks.gate.analysis.constraints import NUMBER
from benchmarks.gate.analysis.metrics import Metrics
from benchmarks.gate.analysis.records import Request, Run


class InvalidSlo(ValueError):
    """An objective that no request can be held against; the text is for the user."""


@dataclass(frozen=True, slots=True)
class Slo:
    """At most so many ms of a figure in FIGURES."""

    name: str
    ms: float

    def __str__(self) -> str:
        return f"{self.name}:{self.ms:g}"

    def met_by(self, request: Request) -> bool:
        """Whether an answered request kept to it."""
        return FIGURES[self.name](request) <= self.ms


@dataclass(frozen=True, slots=True)
class Goodput:
    """`good` of `ended` requests met all of `slos`. `per_second` is None without an answer:
    there is no throughput then."""

    slos: tuple[str, ...]
    good: int
    ended: int
    per_second: float | None

    @property
    def share(self) -> float:
        """Share of all ended requests, failures included."""
        return self.good / self.ended if self.ended else 0.0

    @property
    def line(self) -> str:
        """For display."""
        rate = "" if self.per_second is None else f", {self.per_second:.2f} requests/sec"
        return (
            f"Goodput ({' '.join(self.slos)} ms): {self.good} of {self.ended} requests "
            f"({self.share:.1%}){rate}"
        )


def _ttft(request: Request) -> float:
    return ((request.first or 0.0) - request.sent) * 1e3


def _latency(request: Request) -> float:
    return ((request.last or 0.0) - request.sent) * 1e3


def _itl(request: Request) -> float:
    """AIPerf's, as in metrics.py; an answer of one token has none and keeps to any."""
    if request.tokens < 2:
        return 0.0
    return (_latency(request) - _ttft(request)) / (request.tokens - 1)


FIGURES: Mapping[str, Callable[[Request], float]] = {"ttft": _ttft, "itl": _itl, "e2e": _latency}


def parse(text: str) -> Slo:
    """`ttft:2000`. Raises InvalidSlo."""
    name, _, number = text.partition(":")
    if name not in FIGURES:
        raise InvalidSlo(f"{text}: not NAME:MS with NAME one of {', '.join(FIGURES)}")
    if not NUMBER.fullmatch(number) or not 0 < float(number) < float("inf"):
        raise InvalidSlo(f"{text}: the limit must be above 0 ms")
    return Slo(name, float(number))


def goodput(run: Run, metrics: Metrics, slos: Iterable[Slo]) -> Goodput | None:
    """None without limits. The rate is the throughput of good requests, over the same time."""
    asked = tuple(slos)
    if not asked:
        return None
    good = sum(each.succeeded and all(slo.met_by(each) for slo in asked) for each in run.requests)
    ended = metrics.errors + (metrics.requests or 0)
    all_answered = metrics.request_throughput
    rate = all_answered * good / metrics.requests if all_answered and metrics.requests else None
    return Goodput(tuple(map(str, asked)), good, ended, rate)
