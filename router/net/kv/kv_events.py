"""Subscribes to the engines' KV-cache events, vLLM's ZmqEventPublisher, over ZeroMQ.

One budget for all: in a turn of the event loop events are taken for a millisecond, so that streams
do not wait behind them.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from router.core.prefix.block_index import BlockIndex
from router.core.prefix.kv_source import EngineCache
from router.net.kv.kv_subscription import KVAddress, KVSubscription

__all__ = ["KVAddress", "KVEventSubscriber"]

TURN_SECONDS: Final = 0.001
"""Seconds for events in each turn of the event loop. An event of 16,000 tokens takes about that."""

MAX_SOCKETS: Final = 8_192
"""Of all engines: three or four each."""

REPLAYS: Final = 4
"""At a time: each is work for this process and for an engine."""


class KVEventSubscriber:
    """All subscriptions of a router. Needs a running event loop."""

    def __init__(self, index: BlockIndex) -> None:
        """Raises ImportError, naming the extra to install."""
        try:
            import msgpack  # noqa: PLC0415 - an extra: only KV-cache events need it
            import zmq  # noqa: PLC0415
            from zmq.utils import monitor  # noqa: PLC0415
        except ImportError as error:
            raise ImportError(
                f"KV-cache events need {error.name}: pip install 'pd-router[kv]'"
            ) from None
        self.zmq = zmq
        self.msgpack = msgpack
        self.monitor = monitor
        self.index = index
        self._context: Any = None
        """Made for the first source: it has a thread."""
        self._watched: dict[EngineCache, list[KVSubscription]] = {}
        self._ready: deque[KVSubscription] = deque()
        self._is_scheduled = False
        self._replaying: set[KVSubscription] = set()
        self._waiting: dict[KVSubscription, int] = {}
        """Those that may not ask yet, in the order in which they came, and from where on they will:
        an engine whose numbers go back again and again waits once."""

    @property
    def context(self) -> Any:
        """Of all sockets."""
        if self._context is None:
            self._context = self.zmq.Context(io_threads=1)
            self._context.set(self.zmq.MAX_SOCKETS, MAX_SOCKETS)
        return self._context

    def watch(self, cache: EngineCache, addresses: Sequence[KVAddress]) -> None:
        """Follow an engine's sources from now on, instead of those before."""
        current = self._watched.get(cache, [])
        if [each.address for each in current] == list(addresses):
            return
        self.forget(cache)
        found = [KVSubscription(self, address) for address in addresses]
        self._watched[cache] = found
        cache.replace([each.source for each in found])

    def forget(self, cache: EngineCache) -> None:
        """Do not follow an engine any more."""
        for each in self._watched.pop(cache, ()):
            each.close()
        cache.replace(())
        self._schedule()  # the sweep ends it

    def close(self) -> None:
        """End all subscriptions."""
        for cache in list(self._watched):
            self.forget(cache)
        self._ready.clear()
        if self._context is not None:
            self._context.destroy(linger=0)

    # Work, in turns of the event loop.

    def ready(self, subscription: KVSubscription) -> None:
        """Schedule a subscription that has work to do."""
        if not subscription.is_ready:
            subscription.is_ready = True
            self._ready.append(subscription)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._is_scheduled = False
        until = time.monotonic() + TURN_SECONDS
        while self._ready:
            subscription = self._ready.popleft()
            subscription.is_ready = False
            # Each event may clear a cache: what that leaves is swept before the next one is taken.
            while self.index.sweep() or subscription.step():
                if time.monotonic() >= until:
                    self.ready(subscription)
                    return
        while self.index.sweep():
            if time.monotonic() >= until:
                self._schedule()
                return

    # Replays, a few at a time.

    def may_replay(self, subscription: KVSubscription, start: int) -> bool:
        """Whether it may ask now; else it is told when it may."""
        if subscription in self._replaying or len(self._replaying) < REPLAYS:
            self._replaying.add(subscription)
            return True
        self._waiting[subscription] = start
        return False

    def replay_over(self, subscription: KVSubscription) -> None:
        """A subscription's replay is over: start the next one."""
        self._waiting.pop(subscription, None)
        self._replaying.discard(subscription)
        while self._waiting and len(self._replaying) < REPLAYS:
            other = next(iter(self._waiting))
            start = self._waiting.pop(other)
            self._replaying.add(other)
            other.ask(start)
