"""Publishers of KV-cache events, and their subscribers."""

from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from router.core.kv_events.block_index import BlockIndex
from router.net.kv_events.subscriber import KVEventSubscriber
from router.net.kv_events.subscription import KVAddress
from tests.net.kv_events.followed import Followed
from tests.net.kv_events.kv_publisher import Publisher


@pytest.fixture
async def subscriber() -> AsyncIterator[KVEventSubscriber]:
    subscriber = KVEventSubscriber(BlockIndex())
    yield subscriber
    subscriber.close()


@pytest.fixture
def publishers() -> Iterator[Callable[..., Publisher]]:
    made: list[Publisher] = []

    def make(address: KVAddress | None = None) -> Publisher:
        made.append(Publisher(address))
        return made[-1]

    yield make
    for publisher in made:
        publisher.close()


@pytest.fixture
async def heard(subscriber: KVEventSubscriber, publishers: Callable[..., Publisher]) -> Followed:
    """An engine that is followed, and has announced its first block."""
    engine = Followed(subscriber, publishers())
    await engine.is_live()
    await engine.hears(0)
    return engine
