"""What a turn of the event loop costs: as long as one takes, all other streams wait. And what
memory is taken meanwhile."""

import asyncio
import time
import tracemalloc

__all__ = ["Traced", "Turns"]


class Turns:
    """Measures each turn of the running loop. `most` is the seconds of processor time of the
    longest one: unlike the clock's, they are the same on a busy machine."""

    def __init__(self) -> None:
        self.most = 0.0

    def __enter__(self) -> "Turns":
        self._loop = asyncio.get_running_loop()
        self._began = time.thread_time()
        self._next = self._loop.call_soon(self._turn)
        return self

    def __exit__(self, *_: object) -> None:
        self._next.cancel()

    def _turn(self) -> None:
        now = time.thread_time()
        self.most = max(self.most, now - self._began)
        self._began = now
        self._next = self._loop.call_soon(self._turn)


class Traced:
    """Traces Python's memory. `peak` is how many bytes more there were at a time than before."""

    def __enter__(self) -> "Traced":
        tracemalloc.start()
        self._before = tracemalloc.get_traced_memory()[0]
        return self

    def __exit__(self, *_: object) -> None:
        self.peak = tracemalloc.get_traced_memory()[1] - self._before
        tracemalloc.stop()
