"""What a turn of the event loop costs: as long as one takes, all other streams wait. And what
memory is taken meanwhile."""

import asyncio
import re
import sys
import tracemalloc
from types import FrameType
from typing import Any

import orjson
import pytest

__all__ = ["Traced", "Turns"]

VALUE = re.compile(rb"[,:\[{]")
"""What stands before each value and key of a JSON document."""

BYTES_PER_STEP = 64
"""Of JSON: orjson reads a gigabyte a second, and a call takes some 60 ns."""


class Turns:
    """Counts the steps of each turn of the running loop: calls of functions, Python's own included,
    and what `orjson.loads` reads, its values and bytes. `most` is the longest turn's number: it is
    the same on every machine, busy or not."""

    def __init__(self) -> None:
        self.most = 0
        self._steps = 0

    def __enter__(self) -> "Turns":
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(orjson, "loads", self._loads)
        self._loop = asyncio.get_running_loop()
        self._next = self._loop.call_soon(self._turn)
        sys.setprofile(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        self._next.cancel()
        self._patch.undo()
        self.most = max(self.most, self._steps)

    def _call(self, _frame: FrameType, event: str, _argument: object) -> None:
        self._steps += event in ("call", "c_call")

    def _loads(self, data: Any, _loads: Any = orjson.loads) -> Any:
        raw = data.encode() if isinstance(data, str) else bytes(data)
        self._steps += len(raw) // BYTES_PER_STEP + len(VALUE.findall(raw))
        return _loads(data)

    def _turn(self) -> None:
        self.most = max(self.most, self._steps)
        self._steps = 0
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
