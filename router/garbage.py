"""The garbage collector of a process that runs one command."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["rarely_collected"]

YOUNG = 100_000
"""New objects after which the collector examines them; Python's default is 700. While modules are
imported nearly all new objects stay."""


@contextmanager
def rarely_collected() -> Iterator[None]:
    """For a whole command, its imports included: examine objects rarely, and none at the end, where
    Python would examine all of them, although the memory is given back anyway. That took a fifth of
    the CPU time of short commands of `pd-router`."""
    gc.set_threshold(YOUNG)
    try:
        yield
    finally:
        gc.freeze()
