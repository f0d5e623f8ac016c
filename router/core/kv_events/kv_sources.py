"""What is known about one engine's prefix cache from its KV-cache events, and whether to rely on
it."""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

from router.core.kv_events.batches import read_batch
from router.core.kv_events.block_index import BlockIndex
from router.core.kv_events.ordering import EventStream
from router.core.kv_events.parsing import read_event
from router.core.kv_events.source_blocks import SourceBlocks
from router.core.request_facts import PromptTokens
from router.core.values import Gauges

__all__ = ["EngineCache", "KVSource", "SourceCounts", "SourceState"]

BLIND_TOKENS: Final = 8_192
"""Prompt tokens, several steps' worth, that an engine may compute without announcing blocks. The
last block of each prompt is not counted: if it is not full it is computed and never announced, so
an engine that holds all its prompts has nothing to announce."""

DECAY: Final = 0.98
"""Decay per request, so that about the last fifty requests count."""

MIN_TOKENS: Final = 4_000.0
"""Predicted tokens (decayed) from which measurements are used."""

BELIEVED_FROM: Final = 0.8
WRONG_BELOW: Final = 0.5
"""Shares of the predicted tokens that were found. From the first on, predictions are used
unchanged; below the second, events are not used."""


class SourceState(StrEnum):
    """The state of a source of events."""

    CONNECTING = "connecting"
    """Not connected."""
    REPLAYING = "replaying"
    """A replay of missed batches is in progress."""
    LIVE = "live"
    UNREADABLE = "unreadable"
    """The last message could not be parsed."""
    BLIND = "blind"
    """The engine computes prompts without announcing blocks."""
    WRONG = "wrong"
    """The engine finds fewer tokens in its cache than its events predict."""


class SourceCounts(NamedTuple):
    """Counts of what an engine's sources have sent, including replaced sources."""

    events: int = 0
    gaps: int = 0
    replays: int = 0
    losses: int = 0
    """How often batches were lost and could not be replayed, so that all known blocks were
    dropped."""


class KVSource:
    """One publisher of events: an engine, or one data-parallel rank."""

    def __init__(self, index: BlockIndex, endpoint: str, *, can_replay: bool) -> None:
        self.endpoint = endpoint
        """Its ZeroMQ address."""
        self.blocks = SourceBlocks(index)
        self.stream = EventStream(can_replay=can_replay)
        self.is_connected = False
        self.error: str | None = None
        """What was wrong with the last message; None if nothing."""
        self.batches = self.events = self.unreadable = 0
        self.form: str | None = None
        """The form of its events, "arrays" (vLLM up to 0.23) or "maps"; None before the first
        one."""

    @property
    def is_live(self) -> bool:
        """Whether the known blocks are those that the engine holds now."""
        return self.is_connected and self.error is None and not self.stream.is_replaying

    @property
    def counts(self) -> SourceCounts:
        """Counts of what it has sent."""
        stream = self.stream
        return SourceCounts(self.events, stream.gaps, stream.replays, stream.losses)

    def pieces(self, msgpack: Any, payload: bytes) -> Iterator[None]:
        """Parse a batch and apply it, a piece with each `next`. `msgpack` is the package. Raises
        BadBatch, possibly after some events."""
        for raw in read_batch(msgpack, payload):
            is_known = False
            for event in () if raw is None else read_event(raw):
                is_known = True
                self.blocks.apply(event)
                yield
            if is_known:
                self.events += 1
                self.form = "arrays" if isinstance(raw, list) else "maps"
            else:
                yield

    def close(self) -> None:
        """Drop all blocks: the source is not subscribed to any more."""
        self.is_connected = False
        self.blocks.leave()


class _Counted(NamedTuple):
    """Counters of an engine at a scrape."""

    computed: int
    """Prompt tokens that were not in its cache."""
    requests: int
    """Requests that are running or have ended."""
    batches: int
    """Batches received from its sources."""


class EngineCache:
    """The sources of one engine, and how accurate the predictions made from them are."""

    def __init__(self) -> None:
        self.sources: Sequence[KVSource] = ()
        self.sources_error: str | None = None
        """Why the engine could not be asked for its sources the last time, with advice; None if it
        answered or is not asked."""
        self.predicted = self.measured = 0
        """Prompt tokens predicted to be cached, and those that were according to the engine, for
        requests whose answers report it (`prompt_tokens_details`)."""
        self.reports_cached = False
        """Whether the engine's answers report cached tokens."""
        self._predicted = self._measured = 0.0
        """The same as `predicted` and `measured`, with decay."""
        self._counted: _Counted | None = None
        """The counters at the last scrape with a new batch."""
        self.is_blind = False
        self._gone = SourceCounts()
        """Counts of sources that were replaced."""

    @property
    def counts(self) -> SourceCounts:
        """Counts of all sources."""
        found = zip(self._gone, *(source.counts for source in self.sources), strict=True)
        return SourceCounts(*map(sum, found))

    @property
    def share(self) -> float | None:
        """The share of predicted tokens that were found recently; None if unknown."""
        return self._measured / self._predicted if self._predicted >= MIN_TOKENS else None

    @property
    def is_believed(self) -> bool:
        """Whether nearly all predicted tokens are found."""
        share = self.share
        return share is not None and share >= BELIEVED_FROM

    @property
    def is_wrong(self) -> bool:
        """Whether far fewer tokens are found than predicted."""
        share = self.share
        return share is not None and share < WRONG_BELOW

    @property
    def state(self) -> SourceState | None:
        """The worst state of its sources; None if it has none."""
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
        """Whether all blocks in the cache are known."""
        return all(source.stream.is_whole for source in self.sources)

    def confirms(self, prompt: PromptTokens, tokens: int) -> bool:
        """Whether the engine holds all of a prompt whose ids are known only in part, up to an
        incomplete block. `tokens`: what it holds."""
        size = max(source.blocks.block_size or 0 for source in self.sources)
        return not prompt.is_whole and tokens + size > prompt.count

    def held(self, match: Mapping[int, int]) -> int | None:
        """Tokens of the looked-up prompt (`match`) that it holds; None if its events do not say.

        If there are several data-parallel ranks, the one that holds most counts, because the engine
        chooses among them.
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
        """Update from a scrape: the size of the cache, and whether events arrive."""
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
        """Compare a request's `found` cached tokens with the `predicted` ones."""
        self.predicted += predicted
        self.measured += found
        self._predicted = DECAY * self._predicted + predicted
        # Tokens found beyond a prediction must not make up for another request's miss.
        self._measured = DECAY * self._measured + min(found, predicted)

    def replace(self, sources: Sequence[KVSource]) -> None:
        """Set the engine's sources, because it publishes at other addresses now."""
        self._gone = self.counts
        for source in self.sources:
            source.close()
        self.sources = sources
        self._counted, self.is_blind = None, False

    def reset(self) -> None:
        """Forget what was learned, because a new engine has taken its place."""
        self._predicted = self._measured = 0.0
        self._counted, self.is_blind = None, False
