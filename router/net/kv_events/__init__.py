"""Subscribes to the KV-cache events of engines over ZeroMQ. Other packages import from here only.

`finder` learns where each engine publishes; `subscriber` shares the event loop among all
subscriptions; `subscription` owns the sockets of one source. What the messages mean:
`core/kv_events`.
"""

from router.net.kv_events.finder import KVSourceFinder
from router.net.kv_events.subscriber import KVEventSubscriber
from router.net.kv_events.subscription import KVAddress

__all__ = ["KVAddress", "KVEventSubscriber", "KVSourceFinder"]
