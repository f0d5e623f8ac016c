"""`python -m tests.e2e.hanging PYTHON -m router ...`: a router whose workers can be made to
hang.

`HANG` does it to the process that gets the signal. It is ended after five seconds.
"""

import runpy
import signal
import sys
import time
from typing import Final, NoReturn

from router.commands import supervisor, workers
from router.net.processes.shared_state import WorkerContext
from router.web.app import Router

__all__ = ["HANG"]

HANG: Final = signal.SIGWINCH
"""Processes that do not know it ignore it."""


def _hang(*_: object) -> NoReturn:
    while True:
        time.sleep(1)


class HangingRouter(Router):
    """Of a worker."""

    def __init__(self, settings: object, context: WorkerContext) -> None:
        super().__init__(settings, context)  # type: ignore[arg-type]
        signal.signal(HANG, _hang)


def main() -> None:
    """Run the module that the command names, in this process."""
    supervisor.HUNG_TICKS = 20
    workers.Router = HangingRouter  # type: ignore[assignment, attr-defined]
    _, _, module, *arguments = sys.argv[1:]
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
