"""Keeps N worker processes alive until a signal ends them.

A worker is a fork of this process, so it starts with everything imported. A worker that ends is
restarted, with increasing delays if it keeps failing at the start. If workers fail and none runs
for long, or one cannot be started for minutes, this process ends with status 1; with status 2 if a
worker reports a wrong configuration. Each worker has its own process group, since Ctrl-C in a
terminal signals a whole group. The first SIGTERM or SIGINT is passed on to all workers. At a second
one they get `force_stop` instead, so that a worker that was also signalled by others does not take
the first one for the second. A worker whose event loop hangs is killed, because it would keep its
share of the connections.
"""

import logging
import math
import os
import signal
import time
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Supervisor"]

log = logging.getLogger(__name__)

PASSED_ON = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""Signals that are blocked when workers start."""

SIGNALS = PASSED_ON | {signal.SIGCHLD}

RESTART_SECONDS = 1.0
"""Shortest time in seconds between two starts of a worker; doubled with each consecutive failed
start."""

MAX_RESTART_SECONDS = 30.0

MOST_FAILURES = 5
"""Most consecutive starts, of any worker, that may end within `SETTLED_SECONDS` while none has run
for longer."""

MAX_FAILING_SECONDS = 120.0
"""Seconds for which the starts of one worker may fail. The others serve, but connections to this
one hang, and without the leader engines are not probed or discovered, so the whole router has to be
restarted."""

SETTLED_SECONDS = 10.0
"""Seconds after which a start counts as successful."""

TICK_SECONDS = 0.25
"""Seconds between two calls of `on_tick`; the same as the workers' ticks."""

HUNG_TICKS = 120
"""Ticks without a heartbeat (30 s) after which a worker is aborted with a traceback. Counted in
ticks, because whatever stops all processes for a time stops this one too."""

STARTING_TICKS = 480
"""Ticks until the first heartbeat (2 minutes) after which a worker counts as hung, too."""

ABORT_TICKS = 8
"""Further ticks (2 s) after which a worker that did not abort is killed."""

WRONG_CONFIGURATION = 2
"""Exit status of a worker that would fail again."""


@dataclass(slots=True)
class _Worker:
    number: int
    pid: int | None = None
    started: float = -math.inf
    failures: int = 0
    """Number of consecutive failed starts."""
    failing_since: float = 0.0
    """Time of the first of them."""
    heartbeat: int = 0
    silent_ticks: int = 0
    """Ticks since the heartbeat last changed."""

    @property
    def due(self) -> float:
        """The earliest time of the next start."""
        doublings = min(max(self.failures - 1, 0), 10)
        return self.started + min(RESTART_SECONDS * 2.0**doublings, MAX_RESTART_SECONDS)

    def has_settled(self, now: float) -> bool:
        """Whether it has been running for SETTLED_SECONDS."""
        return self.pid is not None and now - self.started >= SETTLED_SECONDS


class Duties(Protocol):
    """What is done for the workers, each of them by its number from 0 on."""

    def work(self, number: int, /) -> None:
        """Be this worker, in a process of its own.

        SIGTERM, SIGINT and SIGHUP are blocked until it handles them. Signals that arrive earlier
        are kept, even if a shell has started the router with SIGINT ignored.
        """

    def on_exit(self, number: int, /) -> None:
        """The worker has ended, and is not waited for yet."""

    def on_shutdown(self) -> None:
        """No worker will be started any more."""

    def on_hangup(self) -> None:
        """SIGHUP arrived."""

    def on_tick(self) -> None:
        """A quarter of a second has passed."""

    def heartbeat(self, number: int, /) -> int:
        """A number that changes while the worker's event loop runs; 0 before it runs."""


class Supervisor:
    """Runs `count` workers.

    `force_stop` is the signal that ends a draining worker at once, `hand_over_signal` the one after
    which a worker only finishes its requests.
    """

    def __init__(
        self,
        count: int,
        duties: Duties,
        force_stop: signal.Signals,
        hand_over_signal: signal.Signals = signal.SIGUSR2,
    ) -> None:
        self._workers = [_Worker(number) for number in range(count)]
        self._duties = duties
        self._force_stop = force_stop
        self._hand_over_signal = hand_over_signal
        self._failures = 0
        self._is_ending = False
        self._signals = 0
        self._status = 0

    def run(self) -> int:
        """Run until all workers have ended. Returns the exit status."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if ignored, no end would be seen
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            while True:
                self._start_due(before)
                if self._is_ending and not any(worker.pid for worker in self._workers):
                    break
                seen = signal.sigtimedwait(SIGNALS, self._seconds_to_wait())
                # Of a process that was stopped for longer (SIGSTOP, a debugger, `docker pause`)
                # Python returns uninitialised memory; si_errno is 0 on Linux.
                if seen is None or seen.si_signo not in SIGNALS or seen.si_errno:
                    self._tick()
                elif seen.si_signo == signal.SIGCHLD:
                    self._reap()
                elif seen.si_signo == signal.SIGHUP:
                    self._duties.on_hangup()
                else:
                    self._end(seen.si_signo)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return self._status

    def _start_due(self, mask: set[int]) -> None:
        """Start the workers that are due."""
        now = time.monotonic()
        for worker in self._workers:
            if not self._is_ending and worker.pid is None and worker.due <= now:
                self._start(worker, mask)

    def _seconds_to_wait(self) -> float:
        """Seconds until a worker is due, or until the next tick."""
        if self._is_ending:
            return TICK_SECONDS
        now = time.monotonic()
        waits = [worker.due - now for worker in self._workers if worker.pid is None]
        return max(0.0, min([TICK_SECONDS, *waits]))

    def _tick(self) -> None:
        for worker in self._workers:
            if worker.pid is not None:
                self._end_if_hung(worker, worker.pid)
        if not self._is_ending:
            self._duties.on_tick()

    def _end_if_hung(self, worker: _Worker, pid: int) -> None:
        """Abort or kill a worker whose event loop has not run for too long."""
        heartbeat = self._duties.heartbeat(worker.number)
        if heartbeat != worker.heartbeat:
            worker.heartbeat, worker.silent_ticks = heartbeat, 0
            return
        worker.silent_ticks += 1
        most = HUNG_TICKS if heartbeat else STARTING_TICKS
        if worker.silent_ticks == most:
            seconds = most * TICK_SECONDS
            log.error("worker %d (pid %d) hangs, for %g s: ending it", worker.number, pid, seconds)
            os.kill(pid, signal.SIGABRT)
        elif worker.silent_ticks == most + ABORT_TICKS:
            os.kill(pid, signal.SIGKILL)

    def hand_over(self) -> None:
        """Let the workers finish their requests, because another router accepts connections now."""
        self._begin_end()
        self._signal(self._hand_over_signal)

    def _start(self, worker: _Worker, mask: set[int]) -> None:
        worker.started, worker.silent_ticks = time.monotonic(), 0
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:  # no memory or too many processes, perhaps temporarily
            log.error("worker %d cannot be started: %s", worker.number, error.strerror)  # noqa: TRY400 - no traceback
            self._count_failure(worker, 0.0)
            return
        if pid:
            worker.pid = pid
            return
        status = 1
        try:
            os.setpgrp()
            signal.pthread_sigmask(signal.SIG_SETMASK, {*mask, *PASSED_ON})
            if os.getppid() == parent:
                self._duties.work(worker.number)
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except BaseException:
            log.exception("worker %d failed", worker.number)
        finally:
            logging.shutdown()
            os._exit(status)  # skip the parent's clean-up

    def _reap(self) -> None:
        for worker in self._workers:
            if worker.pid is None:
                continue
            ended = os.WEXITED | os.WNOHANG | os.WNOWAIT  # /proc has its data until a wait
            if os.waitid(os.P_PID, worker.pid, ended) is None:
                continue
            self._duties.on_exit(worker.number)
            pid, worker.pid = worker.pid, None
            _, status = os.waitpid(pid, 0)
            code = os.waitstatus_to_exitcode(status)
            if code == WRONG_CONFIGURATION:
                self._status = WRONG_CONFIGURATION
                if not self._is_ending:
                    self._end(signal.SIGTERM)
            elif not self._is_ending:
                how = _end_of(code)
                log.error("worker %d (pid %d) ended %s; restarting it", worker.number, pid, how)
                self._count_failure(worker, time.monotonic() - worker.started)

    def _count_failure(self, worker: _Worker, lived: float) -> None:
        if lived >= SETTLED_SECONDS:
            self._failures = worker.failures = 0
            return
        now = time.monotonic()
        if worker.failures == 0:
            worker.failing_since = now
        self._failures += 1
        worker.failures += 1
        seconds = now - worker.failing_since
        if seconds >= MAX_FAILING_SECONDS:
            log.error("worker %d could not be started for %.0f s: ending", worker.number, seconds)
        elif self._failures < MOST_FAILURES or any(each.has_settled(now) for each in self._workers):
            return
        else:
            log.error("%d starts of workers failed in a row: giving up", self._failures)
        self._status = 1
        self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        """Pass a signal on to all workers. After a second one they end at once, and a third one
        kills those that do not."""
        self._signals += 1
        if self._signals == 1:
            log.info("shutting down; a second signal ends at once")
            self._begin_end()
        elif self._signals == 2:
            number = self._force_stop
        else:
            number = signal.SIGKILL
        self._signal(number)

    def _begin_end(self) -> None:
        """Start no more workers."""
        if not self._is_ending:
            self._is_ending = True
            self._duties.on_shutdown()

    def _signal(self, number: int) -> None:
        for worker in self._workers:
            if worker.pid is not None:
                os.kill(worker.pid, number)


def _end_of(code: int) -> str:
    """How a process ended, by its exit status, or the negative number of the signal."""
    if code >= 0:
        return f"with status {code}"
    if -code == signal.SIGKILL:
        return "by SIGKILL (out of memory?)"
    known = -code in set(signal.Signals)
    return f"by {signal.Signals(-code).name if known else f'signal {-code}'}"
