"""`python -m tests.chaos.breakable PYTHON -m router.cli ...`: a router whose background loops can
be made to raise.

`BREAK` does it to all that run in the process which gets the signal.
"""

import asyncio
import runpy
import signal
import sys
from functools import partial
from typing import Final

from router.net.tasks import Loop, TaskSet

__all__ = ["BREAK", "RAISED"]

BREAK: Final = signal.SIGWINCH
"""Processes that do not know it ignore it."""

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
    _, _, module, *arguments = sys.argv[1:]
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
