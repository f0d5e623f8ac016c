"""Number of connections to each engine, over all worker processes."""

import asyncio
from collections.abc import Iterator, Mapping

from router.core.speed.tuning import TICK_SECONDS
from router.core.values import Endpoint
from router.net.engine.pool import EnginePool
from router.net.processes.shared_state import WorkerContext

__all__ = ["ConnectionCounts"]


class ConnectionCounts:
    """Connections of this process or, with a `context`, of all workers, which publish their numbers
    in shared memory."""

    def __init__(self, pools: Mapping[Endpoint, EnginePool], context: WorkerContext | None) -> None:
        self._pools = pools
        self._context = context

    def by_engine(self) -> Iterator[tuple[Endpoint, int, int]]:
        """Yields each engine with the number of its connections and of the idle ones among them."""
        if self._context is not None:
            self._show(self._context)
            for endpoint in self._pools:
                yield endpoint, *self._context.column.connections(endpoint)
        else:
            for endpoint, pool in self._pools.items():
                yield endpoint, pool.open, pool.idle

    async def show_for_ever(self, context: WorkerContext) -> None:
        """Publish this worker's numbers at each tick."""
        while True:
            self._show(context)
            await asyncio.sleep(TICK_SECONDS)

    def _show(self, context: WorkerContext) -> None:
        for endpoint, pool in self._pools.items():
            context.column.set_connections(endpoint, pool.open, pool.idle)
