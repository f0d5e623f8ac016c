"""Subscribes to the engines' KV-cache events (vLLM's ZmqEventPublisher) over ZeroMQ.

In each turn of the event loop, events of all engines are processed for a millisecond, so that
streams do not wait for them.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from router.core.kv_events import BlockIndex, EngineCache
from router.net.kv_events.subscription import KVAddress, KVSubscription

__all__ = ["KVAddress", "KVEventSubscriber"]

TURN_SECONDS: Final = 0.001
"""Seconds per turn of the event loop for events. One event of 16,000 tokens takes about this
long."""

MAX_SOCKETS: Final = 8_192
"""Most ZeroMQ sockets, for all engines; each engine takes three or four."""


class KVEventSubscriber:
    """All subscriptions of a router. Needs a running event loop."""

    def __init__(self, index: BlockIndex) -> None:
        """Raises ImportError, whose message names the extra to install."""
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
        """Created for the first source, because it starts a thread."""
        self._watched: dict[EngineCache, list[KVSubscription]] = {}
        self._ready: deque[KVSubscription] = deque()
        self._is_scheduled = False
        self._replaying: KVSubscription | None = None
        """The subscription whose replay is in progress. One at a time is processed about as fast as
        it is received; of several, nearly all messages (10,000 of each) would wait in memory."""
        self._waiting: dict[KVSubscription, int] = {}
        """Subscriptions that wait for a replay, in the order of their requests, with the number to
        replay from. An engine whose numbers repeatedly go back has only one place."""

    @property
    def context(self) -> Any:
        """The ZeroMQ context of all sockets."""
        if self._context is None:
            self._context = self.zmq.Context(io_threads=1)
            self._context.set(self.zmq.MAX_SOCKETS, MAX_SOCKETS)
        return self._context

    def watch(self, cache: EngineCache, addresses: Sequence[KVAddress]) -> None:
        """Subscribe to an engine's sources, in place of its previous ones.

        Raises ZMQError if there are not sockets enough; then the engine has no sources.
        """
        current = self._watched.get(cache, [])
        if [each.address for each in current] == list(addresses):
            return
        self.forget(cache)
        found: list[KVSubscription] = []
        with contextlib.ExitStack() as undone:  # those that were made, if a later one fails
            for address in addresses:
                found.append(KVSubscription(self, address))
                undone.callback(found[-1].discard)
            undone.pop_all()
        self._watched[cache] = found
        cache.replace([each.source for each in found])

    def forget(self, cache: EngineCache) -> None:
        """End the subscriptions to an engine's sources."""
        for each in self._watched.pop(cache, ()):
            each.close()
        cache.replace(())
        self._schedule()  # sweeps what they held

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
        if self._replaying is None and self._waiting:
            self._replaying = next(iter(self._waiting))
            self._replaying.ask(self._waiting.pop(self._replaying))
        while self._ready:
            subscription = self._ready.popleft()
            subscription.is_ready = False
            # An event may clear a cache. The blocks that it held are swept before the next event.
            while self.index.sweep() or subscription.step():
                if time.monotonic() >= until:
                    self.ready(subscription)
                    return
        while self.index.sweep():
            if time.monotonic() >= until:
                self._schedule()
                return

    # Replays, one at a time.

    def may_replay(self, subscription: KVSubscription, start: int) -> bool:
        """Whether a replay may be requested now. If not, the subscription's `ask` is called
        later."""
        self._let_go(subscription)  # of one whose numbers went back meanwhile
        if self._replaying is None and not self._waiting:
            self._replaying = subscription
            return True
        self._waiting[subscription] = start
        return False

    def replay_over(self, subscription: KVSubscription) -> None:
        """Note the end of a subscription's replay; the next turn starts the next one."""
        self._waiting.pop(subscription, None)
        self._let_go(subscription)

    def _let_go(self, subscription: KVSubscription) -> None:
        if self._replaying is subscription:
            self._replaying = None
            self._schedule()
