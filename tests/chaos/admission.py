"""Whether each request that ended has given its place back to the router that limits them."""

import asyncio
import signal

from tests.chaos.cluster import THRESHOLD, Cluster
from tests.forked import SECONDS
from tests.net.client import Answer, Client

__all__ = ["MAX_IN_FLIGHT", "places_kept"]

MAX_IN_FLIGHT = 1000
"""While everything breaks: more than are ever under way, so that none waits."""

CONNECTIONS = 20
"""One after the other: they reach all workers."""


async def places_kept(cluster: Cluster) -> list[str]:
    """Faults of the places, without requests in progress.

    A router reports the number of waiting requests. A last free place shows the number served: a
    request that finds it taken waits in vain.
    """
    metrics = (await _get(cluster, "/metrics")).body
    wrong = [] if b"\npd_router_queue_length 0.0\n" in metrics else ["requests wait in the queue"]
    await _limit_to_one(cluster)
    for _ in range(CONNECTIONS):
        client = await Client.open(cluster.router.port)
        answer = await client.ask("/v1/completions", {"model": "sim", "prompt": "a"})
        client.leave()
        if answer.status != 200:
            return [*wrong, f"a place is taken by nobody: {answer}"]
    return wrong


async def _limit_to_one(cluster: Cluster) -> None:
    """With another threshold, which shows that a worker has reloaded the settings."""
    cluster.routers.configure(max_in_flight=1, queue_timeout=1.0, routing_threshold=THRESHOLD + 1)
    cluster.router.signal(signal.SIGHUP)
    sign = b'routing_threshold="%d"' % (THRESHOLD + 1)
    async with asyncio.timeout(SECONDS):
        agreed = 0
        while agreed < CONNECTIONS:
            agreed = agreed + 1 if sign in (await _get(cluster, "/metrics")).body else 0


async def _get(cluster: Cluster, path: str) -> Answer:
    client = await Client.open(cluster.router.port)
    try:
        return await client.get(path)
    finally:
        client.leave()
