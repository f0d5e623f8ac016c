"""Counters of engines' prefix caches and KV-cache events, from totals that the fleet keeps."""

from collections.abc import Iterable

from prometheus_client import Counter

from router.core.fleet.fleet import Fleet
from router.core.fleet.member import Member
from router.core.kv_events import EngineCache
from router.core.prefix.trust import PrefixCoverage
from router.core.values import Endpoint
from router.telemetry.families import Families

__all__ = ["KVCounts"]

_Total = tuple[Counter, tuple[str, ...], int]
"""A family, the labels beside role and endpoint, and the count."""


class KVCounts:
    """Adds the increases since the last flush. A fleet without events has no series of them, and an
    engine whose prefix cache was never counted has none of that."""

    def __init__(self, fleet: Fleet, families: Families) -> None:
        self._fleet = fleet
        self._families = families
        self._told: dict[tuple[Counter, tuple[str, ...]], int] = {}
        self.flush()  # counters begin at zero

    def flush(self) -> None:
        """Export the increases since the last flush."""
        for member in self._fleet:
            if member.cache is not None:
                self._tell_all(member, self._of_events(member.cache))
            if any(member.prefix_coverage.tokens.values()):
                self._tell_all(member, self._of_prompts(member.prefix_coverage))

    def forget(self, endpoint: Endpoint) -> None:
        """Remove an engine's counters."""
        for family, labels in [told for told in self._told if told[1][:2] == endpoint[::-1]]:
            family.remove(*labels)
            del self._told[family, labels]

    def _of_prompts(self, coverage: PrefixCoverage) -> Iterable[_Total]:
        for known_by, tokens in coverage.tokens.items():
            yield self._families.known_tokens, (known_by,), tokens
        yield self._families.regret_tokens, (), coverage.regret

    def _of_events(self, cache: EngineCache) -> Iterable[_Total]:
        families, counts = self._families, cache.counts
        yield families.kv_events, (), counts.events
        yield families.kv_event_troubles, ("gap",), counts.gaps
        yield families.kv_event_troubles, ("replay",), counts.replays
        yield families.kv_event_troubles, ("loss",), counts.losses
        yield families.cached_tokens, ("predicted",), cache.predicted
        yield families.cached_tokens, ("measured",), cache.measured

    def _tell_all(self, member: Member, totals: Iterable[_Total]) -> None:
        for family, kind, total in totals:
            labels = member.endpoint.role, member.endpoint.url, *kind
            told = self._told.get((family, labels))
            if total != told:
                # A new engine at the same URL starts at zero.
                grown = total if told is None or total < told else total - told
                family.labels(*labels).inc(grown)
                self._told[family, labels] = total
