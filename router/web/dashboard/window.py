"""Readings of counters over a minute, with the rates, shares and quantiles derived from them.

Pure: times are arguments, in monotonic seconds.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from router.core.values import Endpoint
from router.telemetry.sums import Buckets, Totals

__all__ = ["EndpointCounts", "Reading", "Window", "quantile"]

WINDOW_SECONDS: Final = 60.0
"""Period in seconds for counts, quantiles and shares."""

RATE_SECONDS: Final = 5.0
"""Period in seconds for rates: engines' gauges are read once a second, and the tokens of a batch
arrive together."""

K = TypeVar("K")


class EndpointCounts(NamedTuple):
    """What one endpoint has done since the start. None: unknown."""

    events: int = 0
    """Stream events of this router's clients, without the first one of each stream."""
    tokens_per_event: float = 1.0
    """Tokens per event, by the current calibration."""
    other_tokens: int = 0
    """First tokens of streams, and all tokens of unary answers."""
    cache_queries: int | None = None
    cache_hits: int | None = None


NOTHING: Final = EndpointCounts()


@dataclass(frozen=True, slots=True)
class Reading:
    """All counts at one moment."""

    at: float
    totals: Totals
    endpoints: Mapping[Endpoint, EndpointCounts]


class Window:
    """The readings of the last minute; at least one must have been added."""

    def __init__(self) -> None:
        self._readings: deque[Reading] = deque()

    def add(self, reading: Reading) -> None:
        """Add a reading. Those from before the minute are dropped except the last one, so that
        nothing that happened in the minute is missed."""
        readings = self._readings
        readings.append(reading)
        while len(readings) > 1 and readings[1].at <= reading.at - WINDOW_SECONDS:
            readings.popleft()

    @property
    def last(self) -> Reading:
        """The newest reading."""
        return self._readings[-1]

    @property
    def first(self) -> Reading:
        """The oldest reading."""
        return self._readings[0]

    @property
    def seconds(self) -> float:
        """Length of the window in seconds; the router may have been started within the minute."""
        return self.last.at - self.first.at

    def rate(self, now: float, before: float, since: Reading) -> float | None:
        """The rate per second between a reading and the last one; None if there is only one."""
        seconds = self.last.at - since.at
        return max(0.0, now - before) / seconds if seconds > 0 else None

    @property
    def recent(self) -> Reading:
        """The reading at which rates begin."""
        oldest = self.last.at - RATE_SECONDS
        return next(each for each in self._readings if each.at >= oldest)

    def requests_per_second(self) -> float | None:
        """Rate of ended requests, of all outcomes."""
        since = self.recent
        now, before = self.last.totals.requests, since.totals.requests
        return self.rate(sum(now.values()), sum(before.values()), since)

    def failures(self) -> float:
        """Requests in the window that failed for other reasons than their clients."""
        return max(0.0, self.last.totals.failures - self.first.totals.failures)

    def tokens_per_second(self, endpoint: Endpoint) -> float | None:
        """Rate of tokens generated for this router's clients."""
        since = self.recent
        now, before = self.last.endpoints.get(endpoint), since.endpoints.get(endpoint)
        if now is None or before is None:
            return None
        tokens = (now.events - before.events) * now.tokens_per_event
        return self.rate(tokens + now.other_tokens, before.other_tokens, since)

    def prompt_tokens_per_second(self, endpoint: Endpoint) -> float | None:
        """Rate of prompt tokens that the engine looked up in its prefix cache, for all clients."""
        since = self.recent
        now, before = self.last.endpoints.get(endpoint), since.endpoints.get(endpoint)
        if now is None or now.cache_queries is None:
            return None
        if before is None or before.cache_queries is None:
            return None
        return self.rate(now.cache_queries, before.cache_queries, since)

    def hit_ratio(self, endpoint: Endpoint) -> float | None:
        """The share of prompt tokens that were in its prefix cache, by its own counters."""
        now = self.last.endpoints.get(endpoint, NOTHING)
        before = self.first.endpoints.get(endpoint, NOTHING)
        if now.cache_queries is None or now.cache_hits is None:
            return None
        if before.cache_queries is None or before.cache_hits is None:
            return None
        queries, hits = now.cache_queries - before.cache_queries, now.cache_hits - before.cache_hits
        return min(1.0, hits / queries) if queries > 0 and hits >= 0 else None

    def answers(self) -> dict[Endpoint, float]:
        """Requests that each engine has begun to answer."""
        return added(self.last.totals.answers, self.first.totals.answers)

    def ttft(self, endpoint: Endpoint | None = None) -> Buckets:
        """Histogram of times to first token, of all streams, or of one engine's streams or
        prefills."""
        now, before = self.last.totals, self.first.totals
        if endpoint is None:
            return added(now.ttft, before.ttft)
        nothing: Buckets = {}
        return added(
            now.endpoint_ttft.get(endpoint, nothing), before.endpoint_ttft.get(endpoint, nothing)
        )

    def decisions(self) -> dict[tuple[str, str], float]:
        """Requests by mode and reason."""
        return added(self.last.totals.decisions, self.first.totals.decisions)

    def fallbacks(self) -> dict[tuple[str, str], float]:
        """Legs that fell back, by leg and reason."""
        return added(self.last.totals.fallbacks, self.first.totals.fallbacks)


def added(now: Mapping[K, float], before: Mapping[K, float]) -> dict[K, float]:
    """The increase of counts; never negative, also if a process was restarted."""
    return {key: max(0.0, count - before.get(key, 0.0)) for key, count in now.items()}


def quantile(share: float, buckets: Buckets) -> float | None:
    """A quantile of a histogram by linear interpolation, like Prometheus' histogram_quantile; None
    if it is empty. In the last bucket it is the bucket's lower bound."""
    bounds = sorted(buckets)
    if not bounds or not buckets[bounds[-1]]:
        return None
    rank = share * buckets[bounds[-1]]
    lower, below = 0.0, 0.0
    for bound in bounds[:-1]:
        count = buckets[bound]
        if count >= rank:
            inside = count - below
            return lower + (bound - lower) * ((rank - below) / inside if inside else 1.0)
        lower, below = bound, count
    return lower
