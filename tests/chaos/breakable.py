"""`python -m tests.chaos.breakable NAMES PYTHON -m router ...`: a router whose background loops
can be made to raise, and that resolves the names of its engines by the file NAMES.

`BREAK` does the first to all that run in the process which gets the signal.
"""

import asyncio
import runpy
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Final

import uvloop

from router.net import addresses
from router.net.tasks import Loop, TaskSet
from tests.chaos.names import resolver

__all__ = ["BREAK", "RAISED"]

BREAK: Final = signal.SIGWINCH
"""Processes that do not know it ignore it."""

FRESH_SECONDS: Final = 0.1
"""For which addresses are used without looking their name up again: names change often here."""

RAISED: Final = "raised by the chaos run"

_running: set[asyncio.Future[None]] = set()
_broken: set[asyncio.Future[None]] = set()


def _break() -> None:
    for task in _running:
        _broken.add(task)
        task.cancel()


async def _breakable(loop: Loop) -> None:
    outer = asyncio.current_task()
    assert outer is not None
    asyncio.get_running_loop().add_signal_handler(BREAK, _break)
    task = asyncio.ensure_future(loop())
    _running.add(task)
    try:
        await task
    except asyncio.CancelledError:
        if task in _broken and not outer.cancelling():
            raise RuntimeError(RAISED) from None
        raise
    finally:
        _running.discard(task)
        _broken.discard(task)


def main() -> None:
    """Run the module that the command names, in this process."""
    spawn = TaskSet.spawn

    def spawn_breakable(self: TaskSet, loop: Loop, kind: str, of: str = "") -> asyncio.Task[None]:
        return spawn(self, partial(_breakable, loop), kind, of)

    TaskSet.spawn = spawn_breakable  # type: ignore[method-assign]
    path, _, _, module, *arguments = sys.argv[1:]
    addresses.FRESH_SECONDS = FRESH_SECONDS
    setattr(uvloop.Loop, "getaddrinfo", resolver(Path(path)))  # noqa: B010 - mypy
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
