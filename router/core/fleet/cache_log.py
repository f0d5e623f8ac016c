"""Log lines about the engines' KV-cache events: when a subscription becomes live or stops being
so."""

from collections.abc import Iterable
from typing import Final

from router.core.fleet.status import Notice
from router.core.judge.member import Member
from router.core.kv_events import EngineCache, SourceState

__all__ = ["CacheLog", "state_text"]

SETTLE_SECONDS: Final = 5.0
"""Seconds until a state other than live is logged: connections and replays take a moment."""


class CacheLog:
    """Compares each engine's state with the last one that was logged."""

    def __init__(self) -> None:
        self._told: dict[EngineCache, SourceState | None] = {}
        self._since: dict[EngineCache, tuple[SourceState | None, float]] = {}

    def notices(self, members: Iterable[Member], now: float) -> list[Notice]:
        """The lines to log now, about engines that are up."""
        caches = [
            (member, member.prompts.events)
            for member in members
            if member.prompts.events is not None
        ]
        if len(self._since) > len(caches):  # engines have left
            current = {cache for _, cache in caches}
            self._since = {cache: at for cache, at in self._since.items() if cache in current}
            self._told = {cache: state for cache, state in self._told.items() if cache in current}
        notices = (self._notice(member, cache, now) for member, cache in caches)
        return [notice for notice in notices if notice is not None]

    def _notice(self, member: Member, cache: EngineCache, now: float) -> Notice | None:
        state = cache.state
        seen, since = self._since.get(cache, (None, now))
        if cache not in self._since or state is not seen:
            self._since[cache] = state, now
            since = now
        if not member.health.is_up or state is SourceState.REPLAYING:
            return None
        if cache in self._told and self._told[cache] is state:
            return None
        if state is not SourceState.LIVE and now - since < SETTLE_SECONDS:
            return None
        self._told[cache] = state
        name = f"{member.endpoint.role} {member.endpoint.url}"
        return Notice(state is not SourceState.LIVE, f"{name} {state_text(cache, state)}")


HISTORY: Final = "its prompts are routed by what was sent there (--prefix-cache history)"


def state_text(cache: EngineCache, state: SourceState | None) -> str:
    """The log text for an engine in this state, with advice. The engine's name precedes it."""
    where = ", ".join(source.endpoint for source in cache.sources)
    if state is None and cache.sources_error is not None:
        return (
            f"does not tell where it publishes KV-cache events: {cache.sources_error}; until it "
            f"does {HISTORY}"
        )
    if state is None:
        return (
            "offers no KV-cache events at /kv_event_sources: start vLLM with --kv-events-config, "
            f"or name them with --kv-events; until then {HISTORY}"
        )
    if state is SourceState.CONNECTING:
        return (
            f"cannot be heard: no connection to its KV-cache events at {where}; its endpoint must "
            f"be tcp://*:PORT, with a host instead of * vLLM does not listen; until then {HISTORY}"
        )
    if state is SourceState.UNREADABLE:
        why = next(source.error for source in cache.sources if source.error is not None)
        return f"sends KV-cache events that cannot be read: {why}; until that ends {HISTORY}"
    if state is SourceState.BLIND:
        return f"computes prompts and announces nothing at {where}; until it does {HISTORY}"
    if state is SourceState.WRONG:
        return (
            f"finds {100 * (cache.share or 0.0):.0f} % of the prompt tokens that its KV-cache "
            f"events let expect: is {where} this engine's? Until it finds more {HISTORY}"
        )
    held = sum(source.blocks.held for source in cache.sources)
    kind = "" if cache.is_whole else ", without what it held before"
    return f"tells of its KV cache at {where}: {held} blocks{kind}"
