"""Several processes that serve as one router: the duties of their parent."""

import contextlib
import faulthandler
import logging
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from router.commands.sockets import Sockets
from router.commands.supervisor import Supervisor
from router.net.key_file import KeyFile
from router.net.processes.shared_state import SharedState
from router.settings import Settings
from router.web.app import Router, Worker
from router.web.configuration import Configuration
from router.web.server import FORCE_STOP, HAND_OVER, Server, tune_process
from router.web.sources import first_roster

__all__ = ["Workers"]

log = logging.getLogger(__name__)

SHARED_MEMORY = Path("/dev/shm")
"""Folder for the shared metrics: in memory, and writable in a read-only container."""


COUNTS_BYTES = 256 << 10
"""Bytes of a worker's shared metrics without engines: four files of 64 KiB."""

ENGINE_COUNTS_BYTES = 13_500
"""Bytes of a worker's shared metrics for each engine: about fifty series of 200 bytes; measured."""


class Workers:
    """The workers and what they share. `read` reads the settings again, from `file` if there is
    one."""

    def __init__(
        self,
        settings: Settings,
        sockets: Sockets,
        read: Callable[[], Settings],
        file: Path | None,
    ) -> None:
        self._sockets = sockets
        self._succession = sockets.succession
        roster = first_roster(settings)
        self._shared_state = SharedState(settings.workers, roster)
        if settings.api_key_file is not None:  # from the start, workers know where to count
            KeyFile(settings.api_key_file, self._shared_state.key_rows(0))
        self._counts = Path(tempfile.mkdtemp(prefix="pd-router-", dir=_folder()))
        _check_room(self._counts.parent, settings.workers, len(roster.entries))
        self._lifeline, self._alive = os.pipe()
        self._listening = _Listening(settings.workers)
        self._parent = os.getpid()
        reloads = self._shared_state.table.reloads
        self._configuration = Configuration(settings, read, file, self._give_out, reloads)
        self._supervisor = Supervisor(
            settings.workers,
            self._work,
            self._shared_state.worker_left,
            self._ending,
            FORCE_STOP,
            hand_over_signal=HAND_OVER,
            on_hangup=self._configuration.reload,
            on_tick=self._tick,
            heartbeat=self._shared_state.table.heartbeat,
        )

    def run(self) -> int:
        """Run until a signal. Returns the exit status."""
        tune_process()
        try:
            return self._supervisor.run()
        finally:
            self._shared_state.close()
            shutil.rmtree(self._counts, ignore_errors=True)

    def _work(self, number: int) -> None:
        """Run a worker."""
        faulthandler.enable()  # if its event loop hangs it is aborted, which prints a traceback
        os.close(self._alive)
        self._sockets.close(keep=number)
        if self._succession is not None:
            self._succession.forget()
        context = self._shared_state.join(number, os.getpid())
        router = Router(self._configuration.settings, Worker(context, self._counts))
        server = Server(
            router,
            self._lifeline,
            self._sockets.admin[number],
            on_listening=self._listening.tell,
            is_preceded=self._sockets.is_preceded,
        )
        server.run(sockets=self._sockets.public[number])
        router.metrics.close()
        if os.getppid() != self._parent:  # the parent was killed and cannot clean up
            shutil.rmtree(self._counts, ignore_errors=True)
        if router.exit_status:
            raise SystemExit(router.exit_status)

    def _give_out(self, settings: Settings) -> None:
        """Publish settings, which every worker applies at its next tick. Raises ValueError if they
        are too large."""
        self._shared_state.settings.write(pickle.dumps(settings))

    def _ending(self) -> None:
        self._sockets.close()  # otherwise clients would wait in their backlogs
        if self._succession is not None:
            self._succession.close()

    def _tick(self) -> None:
        self._configuration.look()
        if self._succession is None:
            return
        if self._listening.is_new():
            self._succession.begin()
        if self._succession.poll():
            self._supervisor.hand_over()


class _Listening:
    """Whether all workers accept connections, which they report through a pipe."""

    def __init__(self, workers: int) -> None:
        self._missing = workers
        self._reading, self._writing = os.pipe2(os.O_NONBLOCK)

    def tell(self) -> None:
        """Report from a worker that it accepts connections."""
        with contextlib.suppress(BlockingIOError):  # the pipe is full of restarts
            os.write(self._writing, b".")

    def is_new(self) -> bool:
        """Whether all workers accept connections and did not at the last call."""
        if self._missing <= 0:
            return False
        with contextlib.suppress(BlockingIOError):
            self._missing -= len(os.read(self._reading, self._missing))
        return self._missing == 0


def _folder() -> Path | None:
    return SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None


def _check_room(folder: Path, workers: int, engines: int) -> None:
    """Warn if the folder has too little room for the shared metrics of these engines."""
    needed = workers * (COUNTS_BYTES + engines * ENGINE_COUNTS_BYTES)
    free = shutil.disk_usage(folder).free
    if free < needed:
        log.warning(
            "the metrics of %d workers and %d engines need %d MB in %s, which has room for %d: "
            "counts will be missing. Give it more (docs/tuning.md, several processes)",
            workers,
            engines,
            -(-needed // 1_000_000),
            folder,
            free // 1_000_000,
        )
