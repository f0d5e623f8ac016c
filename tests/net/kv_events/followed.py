"""An engine whose KV-cache events are followed, of tests."""

from array import array
from collections.abc import Callable

from router.core.kv_events.kv_sources import EngineCache, KVSource, SourceState
from router.core.request_facts import PromptTokens
from router.net.kv_events.subscriber import KVEventSubscriber
from tests.net.harness import eventually
from tests.net.kv_events.kv_publisher import Publisher, batch, ids_of, stored

SOCKETS = 3
"""ZeroMQ sockets of a subscription without a replay: its own, and two of its monitor."""


class Followed:
    """An engine whose events are followed."""

    def __init__(
        self, subscriber: KVEventSubscriber, publisher: Publisher, *, can_replay: bool = True
    ) -> None:
        self.publisher = publisher
        self.index = subscriber.index
        self.cache = EngineCache()
        address = publisher.address
        subscriber.watch(
            self.cache, [address if can_replay else address._replace(replay_endpoint=None)]
        )

    @property
    def source(self) -> KVSource:
        """Its only source."""
        [source] = self.cache.sources
        return source

    def holds(self, number: int, blocks: int = 1) -> bool:
        """Whether it holds the blocks that `stored` announces."""
        ids = array("I", ids_of(number, blocks)).tobytes()
        prompt = PromptTokens(ids, blocks * 16, None, None, is_whole=False)
        return self.index.match(prompt).get(self.source.blocks.bit, 0) == blocks * 16

    async def is_live(self) -> None:
        """Until it is connected and all replays are over; they are answered."""
        await self.until(lambda: self.cache.state is SourceState.LIVE)

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait, and answer replays meanwhile."""
        await eventually(lambda: (self.publisher.answer(), holds())[1], lambda: self.cache.state)

    async def hears(self, number: int) -> None:
        """Publish a block until it is held: a subscription takes a moment to arrive."""

        def publish() -> bool:
            self.publisher.publish(batch(stored(number)))
            return self.holds(number)

        await self.until(publish)
