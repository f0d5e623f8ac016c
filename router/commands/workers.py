"""Several processes that serve as one router: the duties of their parent."""

import contextlib
import faulthandler
import os
import pickle
import struct
from functools import partial

from router.commands.sockets import Sockets
from router.commands.supervisor import Supervisor
from router.net.processes.shared_state import SharedState
from router.net.watched_files import KeyFile
from router.settings import Settings, SettingsSource
from router.web.app import Router
from router.web.configuration import Configuration
from router.web.discovery import first_roster
from router.web.server import FORCE_STOP, HAND_OVER, Server, tune_process

__all__ = ["Workers"]

_NUMBER = struct.Struct("H")
"""A worker's number, in the pipe."""


class Workers:
    """The workers and what they share. The settings are read again from `source`."""

    def __init__(self, settings: Settings, sockets: Sockets, source: SettingsSource) -> None:
        self._sockets = sockets
        self._succession = sockets.succession
        roster = first_roster(settings)
        self._shared_state = SharedState(settings.workers, roster)
        if settings.api_key_file is not None:  # from the start, workers know where to count
            KeyFile(settings.api_key_file, self._shared_state.key_rows(0))
        self._lifeline, self._alive = os.pipe()
        self._listening = _Listening(settings.workers)
        reloads = self._shared_state.table.reloads
        self._configuration = Configuration(settings, source, self._give_out, reloads)
        self._supervisor = Supervisor(settings.workers, self, FORCE_STOP, HAND_OVER)

    def run(self) -> int:
        """Run until a signal. Returns the exit status."""
        tune_process()
        try:
            return self._supervisor.run()
        finally:
            self._shared_state.close()

    def _give_out(self, settings: Settings) -> None:
        """Publish settings, which every worker applies at its next tick. Raises ValueError if they
        are too large."""
        self._shared_state.settings.write(pickle.dumps(settings))

    # Duties for the supervisor.

    def work(self, number: int) -> None:
        """Run a worker."""
        faulthandler.enable()  # if its event loop hangs it is aborted, which prints a traceback
        os.close(self._alive)
        self._sockets.close(keep=number)
        if self._succession is not None:
            self._succession.forget()
        context = self._shared_state.join(number, os.getpid())
        router = Router(self._configuration.settings, context)
        server = Server(
            router,
            self._lifeline,
            self._sockets.admin[number],
            on_listening=partial(self._listening.report, number),
            is_preceded=self._sockets.is_preceded,
        )
        server.run(sockets=self._sockets.public[number])
        router.metrics.publish()
        if router.lifecycle.exit_status:
            raise SystemExit(router.lifecycle.exit_status)

    def on_exit(self, number: int) -> None:
        """A worker has ended, but is not waited for yet."""
        self._listening.forget(number)
        self._shared_state.worker_left(number)

    def on_shutdown(self) -> None:
        """No worker will be started any more."""
        self._sockets.close()  # otherwise clients would wait in their backlogs
        if self._succession is not None:
            self._succession.close()

    def on_hangup(self) -> None:
        """Read the settings again."""
        self._configuration.reload()

    def heartbeat(self, number: int) -> int:
        """A number that changes while the worker's event loop runs; 0 before it runs."""
        return self._shared_state.table.heartbeat(number)

    def on_tick(self) -> None:
        """Look for changed settings, and at takeovers."""
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
        self._missing = set(range(workers))
        self._was_reported = False
        self._reading, self._writing = os.pipe2(os.O_NONBLOCK)

    def report(self, number: int) -> None:
        """Report from worker `number` that it accepts connections."""
        os.write(self._writing, _NUMBER.pack(number))

    def forget(self, number: int) -> None:
        """A worker has ended: its successor does not accept connections yet."""
        self._read()
        self._missing.add(number)

    def is_new(self) -> bool:
        """Whether all workers accept connections, for the first time."""
        self._read()
        if self._missing or self._was_reported:
            return False
        self._was_reported = True
        return True

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._reading, 1024 * _NUMBER.size):
                self._missing.difference_update(number for (number,) in _NUMBER.iter_unpack(data))
