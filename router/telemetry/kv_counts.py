"""Counters of the engines' KV-cache events, from totals that the fleet keeps."""

from collections.abc import Iterable

from prometheus_client import Counter

from router.core.fleet.fleet import Fleet
from router.core.fleet.member import Member
from router.core.prefix.kv_source import EngineCache
from router.core.values import Endpoint
from router.telemetry.families import Families

__all__ = ["KVCounts"]


class KVCounts:
    """Adds the increases since the last flush. A fleet without events has no series."""

    def __init__(self, fleet: Fleet, families: Families) -> None:
        self._fleet = fleet
        self._families = families
        self._told: dict[tuple[Counter, tuple[str, ...]], int] = {}
        self.flush()  # counters begin at zero

    def flush(self) -> None:
        """Export the increases since the last flush."""
        for member in self._fleet:
            if member.cache is not None:
                for family, kind, total in self._totals(member.cache):
                    self._tell(family, member, kind, total)

    def forget(self, endpoint: Endpoint) -> None:
        """Remove an engine's counters."""
        for family, labels in [told for told in self._told if told[1][:2] == endpoint[::-1]]:
            family.remove(*labels)
            del self._told[family, labels]

    def _totals(self, cache: EngineCache) -> Iterable[tuple[Counter, tuple[str, ...], int]]:
        families, counts = self._families, cache.counts
        yield families.kv_events, (), counts.events
        yield families.kv_event_troubles, ("gap",), counts.gaps
        yield families.kv_event_troubles, ("replay",), counts.replays
        yield families.kv_event_troubles, ("loss",), counts.losses
        yield families.cached_tokens, ("predicted",), cache.predicted
        yield families.cached_tokens, ("measured",), cache.measured

    def _tell(self, family: Counter, member: Member, kind: tuple[str, ...], total: int) -> None:
        labels = member.endpoint.role, member.endpoint.url, *kind
        told = self._told.get((family, labels), 0)
        # A new engine at the same URL starts at zero.
        family.labels(*labels).inc(total - told if total >= told else total)
        self._told[family, labels] = total
