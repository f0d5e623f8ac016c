"""The prompt prefixes in one engine's KV cache, as far as known, and how far that is believed.

Known from what was sent there or, where it publishes KV-cache events, from these.
"""

from router.core.kv_events import EngineCache, Lookup
from router.core.prefix.held import HeldPrefixes
from router.core.prefix.trust import (
    EVENTS,
    FAR_OFF,
    HISTORY,
    NOTHING,
    KnownBy,
    KnownPrefix,
    PrefixCoverage,
    PrefixTrust,
)
from router.core.request_facts import PrefixKeys
from router.core.values import Gauges

__all__ = ["KnownPrompts"]


class KnownPrompts:
    """The prompts of one engine."""

    __slots__ = ("coverage", "events", "sent", "trust")

    def __init__(self, sent: HeldPrefixes | None = None, events: EngineCache | None = None) -> None:
        self.sent = HeldPrefixes() if sent is None else sent
        """The prefixes that its KV cache should hold after what was sent there."""
        self.events = events
        """Those that it holds according to its KV-cache events; None if these are not used."""
        self.trust = PrefixTrust()
        """How many of the predicted tokens the engine finds."""
        self.coverage = PrefixCoverage()

    def uncached(self, tokens: int, prefix: PrefixKeys, lookup: Lookup | None = None) -> int:
        """How many of a prompt's tokens it would have to compute; at least one."""
        if lookup is not None:
            return self._uncached_by_events(tokens, prefix, lookup)
        held = self.sent.match(prefix)
        share = self.trust.share
        if share < 1.0:
            held = int(share * held)
        return tokens - held if held < tokens else 1

    def _uncached_by_events(self, tokens: int, prefix: PrefixKeys, lookup: Lookup) -> int:
        share = self._trust_in_events
        held = self.held(prefix, lookup)
        return max(1, tokens - int(share * held)) if held else tokens

    def held(self, prefix: PrefixKeys, lookup: Lookup) -> int:
        """Estimated tokens of a prompt that its KV cache holds, or will hold when requests in
        flight have been computed. Known from its events, or else predicted from what was sent
        there."""
        cache, tokens = self.events, self._held_by_events(lookup)
        if cache is None or tokens is None:
            return self.sent.match(prefix)
        prompt = lookup.prompt
        if cache.confirms(prompt, tokens):  # the rest of the prompt may be held too
            return max(prompt.estimated, self.sent.match(prefix))
        held = self.sent.expected(prefix) if cache.is_whole else self.sent.match(prefix)
        return max(prompt.as_estimated(tokens), held)

    def _held_by_events(self, lookup: Lookup) -> int | None:
        """None: its events do not say."""
        cache = self.events
        return None if cache is None or cache.is_wrong else cache.held(lookup.match)

    def known_by(self, lookup: Lookup | None) -> KnownBy:
        """The source of what is known about a prompt."""
        if lookup is None or self._held_by_events(lookup) is None:
            return HISTORY if self.trust.share >= FAR_OFF else NOTHING
        return EVENTS if self._trust_in_events >= FAR_OFF else NOTHING

    def known_prefix(self, prefix: PrefixKeys, lookup: Lookup | None) -> KnownPrefix:
        """What is known of a prompt there: for explanations."""
        if lookup is None:
            held, trust = self.sent.match(prefix), self.trust.share
        else:
            held, trust = self.held(prefix, lookup), self._trust_in_events
        return KnownPrefix(held, trust, self.known_by(lookup))

    @property
    def _trust_in_events(self) -> float:
        """Share of the predicted tokens that is counted, 0 to 1. If answers confirm the
        predictions, the counters for all requests give no further information."""
        is_believed = self.events is not None and self.events.is_believed
        return 1.0 if is_believed else self.trust.share

    def observe(self, gauges: Gauges) -> None:
        """Learn the cache's size from a scrape, and compare the predictions with the engine's
        counters."""
        sent, trust = self.sent, self.trust
        trust.observe(sent.prompt_tokens, sent.predicted_tokens, gauges)
        if gauges.cache_tokens is not None:
            sent.resize(int(trust.room * gauges.cache_tokens))
        if self.events is not None:
            self.events.observe(gauges)

    def forget(self) -> None:
        """Forget what the cache holds, because a new engine has taken its place."""
        self.sent.clear()
        self.trust = PrefixTrust()
        if self.events is not None:
            self.events.reset()
