"""What is known of one engine's prefix cache by its KV-cache events, and whether to rely on it."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from router.core.prefix.block_index import BlockIndex
from router.core.prefix.blocks import SourceBlocks
from router.core.prefix.kv_stream import EventStream
from router.core.prefix.prompt_tokens import PromptTokens
from router.core.values import Gauges

__all__ = ["EngineCache", "EventCounts", "KVSource", "SourceState"]

BLIND_TOKENS: Final = 8_192
"""Prompt tokens that an engine has computed and announced nothing of: several steps' worth. The
last block of each prompt is not counted: one that is not full is computed and never announced, so
an engine that holds all its prompts already has nothing to announce."""

DECAY: Final = 0.98
"""Factor on older requests' tokens, per request: the last fifty count."""

MIN_TOKENS: Final = 4_000.0
"""Predicted tokens, decayed, from which measurements are believed."""

BELIEVED_FROM: Final = 0.8
WRONG_BELOW: Final = 0.5
"""Shares of the predicted tokens that were found: from the first on predictions are taken as they
are, below the second events are not relied on."""


class SourceState(StrEnum):
    """How a source of events is."""

    CONNECTING = "connecting"
    """No connection, or none yet."""
    REPLAYING = "replaying"
    """What was missed is being asked for."""
    LIVE = "live"
    UNREADABLE = "unreadable"
    """The last message was not understood."""
    BLIND = "blind"
    """The engine computes prompts and announces nothing."""
    WRONG = "wrong"
    """The engine does not find what its events let expect."""


class EventCounts(NamedTuple):
    """What has come from an engine's sources, those that are gone included."""

    events: int = 0
    gaps: int = 0
    replays: int = 0
    losses: int = 0
    """How often batches were lost for good, so that what was known of the cache was dropped."""


class KVSource:
    """One publisher of events: an engine, or one data-parallel rank of it."""

    def __init__(self, index: BlockIndex, endpoint: str, *, can_replay: bool) -> None:
        self.endpoint = endpoint
        """Its ZeroMQ address."""
        self.blocks = SourceBlocks(index)
        self.stream = EventStream(can_replay=can_replay)
        self.is_connected = False
        self.error: str | None = None
        """What was wrong with the last message; None if nothing was."""
        self.batches = self.events = self.unreadable = 0
        self.form: str | None = None
        """Of its events, "arrays" (vLLM up to 0.23) or "maps"; None until the first one."""

    @property
    def is_live(self) -> bool:
        """Whether its blocks are those of the engine now."""
        return self.is_connected and self.error is None and not self.stream.is_replaying

    @property
    def counts(self) -> EventCounts:
        """What has come."""
        stream = self.stream
        return EventCounts(self.events, stream.gaps, stream.replays, stream.losses)

    def close(self) -> None:
        """The source is not subscribed to any more."""
        self.is_connected = False
        self.blocks.leave()


class _Counted(NamedTuple):
    """Counters of an engine at a scrape."""

    computed: int
    """Prompt tokens that were not found in its cache."""
    requests: int
    """Requests that run or have ended."""
    batches: int
    """That have come from its sources."""


class EngineCache:
    """The sources of one engine, and what came of the predictions that were made by them."""

    def __init__(self) -> None:
        self.sources: Sequence[KVSource] = ()
        self.predicted = self.measured = 0
        """Prompt tokens that were predicted to be found, and those that the engine says it found,
        of the requests whose answers tell (`prompt_tokens_details`)."""
        self.tells = False
        """Whether the engine's answers tell how many tokens it found."""
        self._predicted = self._measured = 0.0
        """The same as `predicted` and `measured`, lately."""
        self._counted: _Counted | None = None
        """The counters when a batch was last seen to have come."""
        self.is_blind = False
        self._gone = EventCounts()
        """Of sources that were replaced."""

    @property
    def counts(self) -> EventCounts:
        """What has come from all sources."""
        found = zip(self._gone, *(source.counts for source in self.sources), strict=True)
        return EventCounts(*map(sum, found))

    @property
    def share(self) -> float | None:
        """The share of predicted tokens that were found lately; None: not known."""
        return self._measured / self._predicted if self._predicted >= MIN_TOKENS else None

    @property
    def is_believed(self) -> bool:
        """Whether nearly all that is predicted is found."""
        share = self.share
        return share is not None and share >= BELIEVED_FROM

    @property
    def is_wrong(self) -> bool:
        """Whether much less is found than predicted."""
        share = self.share
        return share is not None and share < WRONG_BELOW

    @property
    def state(self) -> SourceState | None:
        """How its sources are, by the worst of them; None without any."""
        if not self.sources:
            return None
        if not all(source.is_connected for source in self.sources):
            return SourceState.CONNECTING
        if any(source.error is not None for source in self.sources):
            return SourceState.UNREADABLE
        if any(source.stream.is_replaying for source in self.sources):
            return SourceState.REPLAYING
        if self.is_blind:
            return SourceState.BLIND
        return SourceState.WRONG if self.is_wrong else SourceState.LIVE

    @property
    def is_whole(self) -> bool:
        """Whether all that the cache holds is known."""
        return all(source.stream.is_whole for source in self.sources)

    def confirms(self, prompt: PromptTokens, tokens: int) -> bool:
        """Whether all that is known of a prompt lies there, up to a block that is not full."""
        size = max(source.blocks.block_size or 0 for source in self.sources)
        return not prompt.is_whole and tokens + size > prompt.count

    def held(self, match: Mapping[int, int]) -> int | None:
        """Tokens of the prompt that `match` is of that it holds; None: its events do not say.

        Of several data-parallel ranks the one that holds most: the engine chooses among them.
        """
        if not self.sources or self.is_blind:
            return None
        most = 0
        for source in self.sources:
            if not source.is_live:
                return None
            tokens = match.get(source.blocks.bit, 0)
            if tokens > most:
                most = tokens
        return most

    def observe(self, gauges: Gauges) -> None:
        """Take a scrape: how much the cache has room for, and whether events come."""
        for source in self.sources:
            if gauges.cache_tokens is not None:
                source.blocks.resize(gauges.cache_tokens // len(self.sources))
        if gauges.cache_queries is None or gauges.cache_hits is None or not self.sources:
            self._counted, self.is_blind = None, False
            return
        now = _Counted(
            computed=gauges.cache_queries - gauges.cache_hits,
            requests=(gauges.finished or 0) + (gauges.running or 0),
            batches=sum(source.batches for source in self.sources),
        )
        before = self._counted
        if before is None or now.batches != before.batches or now.computed < before.computed:
            self._counted, self.is_blind = now, False
        else:
            last_blocks = max(0, now.requests - before.requests) * (gauges.block_tokens or 0)
            self.is_blind = now.computed - before.computed - last_blocks > BLIND_TOKENS

    def measure(self, predicted: int, found: int) -> None:
        """An engine found `found` tokens of a prompt of which `predicted` were expected."""
        self.predicted += predicted
        self.measured += found
        self._predicted = DECAY * self._predicted + predicted
        # What it finds beyond the prediction makes up for no other request's miss.
        self._measured = DECAY * self._measured + min(found, predicted)

    def replace(self, sources: Sequence[KVSource]) -> None:
        """The engine publishes at other addresses now."""
        self._gone = self.counts
        for source in self.sources:
            source.close()
        self.sources = sources
        self._counted, self.is_blind = None, False

    def reset(self) -> None:
        """Another engine has taken its place: forget what was learned."""
        self._predicted = self._measured = 0.0
        self._counted, self.is_blind = None, False
