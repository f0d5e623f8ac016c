"""What the parent of workers does when it cannot have any; tests/e2e has the rest, with workers."""

import logging
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import NoReturn

import pytest

from router.commands.supervisor import (
    ABORT_TICKS,
    HUNG_TICKS,
    MAX_FAILING_SECONDS,
    MAX_RESTART_SECONDS,
    MOST_FAILURES,
    SETTLED_SECONDS,
    STARTING_TICKS,
    Supervisor,
)


class Idle:
    """Duties that do nothing but what a test gives them."""

    def __init__(
        self,
        work: Callable[[int], None] = lambda _: None,
        ending: Callable[[], None] = lambda: None,
        heartbeat: Callable[[int], int] = lambda _: 0,
    ) -> None:
        self.work = work
        self.on_shutdown = ending
        self.heartbeat = heartbeat

    def on_exit(self, number: int) -> None: ...

    def on_hangup(self) -> None: ...

    def on_tick(self) -> None: ...


def test_a_machine_that_has_no_room_for_workers_is_given_up_after_some_tries(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fork() -> NoReturn:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", fork)
    monkeypatch.setattr("router.commands.supervisor.RESTART_SECONDS", 0.0)
    caplog.set_level(logging.ERROR)
    told: list[str] = []
    duties = Idle(ending=partial(told.append, "ending"))
    status = Supervisor(2, duties, signal.SIGUSR1).run()
    assert status == 1
    assert told == ["ending"]
    assert len(caplog.messages) == MOST_FAILURES + 1
    assert caplog.messages[0] == ("worker 0 cannot be started: Resource temporarily unavailable")


@pytest.mark.parametrize(
    ("end", "how"),
    [
        (lambda _: os._exit(3), "with status 3"),
        (lambda _: os.kill(os.getpid(), signal.SIGKILL), "by SIGKILL (out of memory?)"),
        (lambda _: os.kill(os.getpid(), signal.SIGALRM), "by SIGALRM"),
        (lambda _: os.kill(os.getpid(), signal.SIGRTMIN + 1), f"by signal {signal.SIGRTMIN + 1}"),
    ],
    ids=["status", "kill", "named signal", "unnamed signal"],
)
def test_the_log_says_how_a_worker_ended(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    end: Callable[[int], None],
    how: str,
) -> None:
    monkeypatch.setattr("router.commands.supervisor.RESTART_SECONDS", 0.0)
    caplog.set_level(logging.ERROR)
    assert Supervisor(1, Idle(end), signal.SIGUSR1).run() == 1
    assert f") ended {how}; restarting it" in caplog.messages[0]


@dataclass
class Restarts:
    """A supervisor of two workers. Worker 1 has run for long; starts of worker 0 fail, until a test
    gives it a `pid`."""

    now: float = 1000.0
    pid: int | None = None
    tries: list[float] = field(default_factory=list)
    """When worker 0 was started."""
    sent: list[int] = field(default_factory=list)
    supervisor: Supervisor = field(init=False)

    def __post_init__(self) -> None:
        self.supervisor = Supervisor(2, Idle(), signal.SIGUSR1)
        self.supervisor._workers[1].pid = 11
        self.supervisor._workers[1].started = self.now - SETTLED_SECONDS

    def monotonic(self) -> float:
        """The clock."""
        return self.now

    def fork(self) -> int:
        """Fails for want of memory."""
        self.tries.append(self.now)
        if self.pid is None:
            raise OSError(12, "Cannot allocate memory")
        return self.pid

    def go_on(self, seconds: int) -> None:
        """Let time pass."""
        for _ in range(seconds):
            self.supervisor._start_due(set())
            self.now += 1.0

    @property
    def gaps(self) -> list[float]:
        """Seconds between the starts."""
        return [later - earlier for earlier, later in pairwise(self.tries)]


@pytest.fixture
def restarts(monkeypatch: pytest.MonkeyPatch) -> Restarts:
    found = Restarts()
    monkeypatch.setattr("router.commands.supervisor.time", found)
    monkeypatch.setattr(os, "fork", found.fork)
    monkeypatch.setattr(os, "kill", lambda _, number: found.sent.append(number))
    return found


def test_a_worker_that_cannot_start_is_tried_ever_later_and_the_others_stay_for_minutes(
    restarts: Restarts, caplog: pytest.LogCaptureFixture
) -> None:
    restarts.go_on(int(MAX_FAILING_SECONDS))
    assert restarts.sent == []
    restarts.go_on(3600)
    assert restarts.gaps == [1.0, 2.0, 4.0, 8.0, 16.0, *[MAX_RESTART_SECONDS] * 3]
    assert restarts.sent == [signal.SIGTERM]
    assert caplog.messages[-1] == "worker 0 could not be started for 121 s: ending"


def test_a_worker_that_has_run_again_is_restarted_without_that_delay(
    restarts: Restarts, monkeypatch: pytest.MonkeyPatch
) -> None:
    restarts.go_on(100)
    restarts.pid = 10
    restarts.go_on(100)  # and where it begins to fail again, that counts from then on
    monkeypatch.setattr(os, "waitid", lambda _, pid, __: pid if pid == 10 else None)
    monkeypatch.setattr(os, "waitpid", lambda pid, _: (pid, signal.SIGKILL))
    restarts.supervisor._reap()
    restarts.tries.clear()
    restarts.go_on(1)
    assert restarts.tries
    assert restarts.sent == []


def test_workers_are_given_up_while_none_of_them_has_run_for_long(restarts: Restarts) -> None:
    restarts.supervisor._workers[1].started = restarts.now + SETTLED_SECONDS
    restarts.go_on(3600)
    assert restarts.sent == [signal.SIGTERM]
    assert len(restarts.tries) == MOST_FAILURES


@dataclass
class Hanging:
    """A supervisor with one worker, whose heartbeat a test sets; signals to it are recorded."""

    supervisor: Supervisor = field(init=False)
    sent: list[int] = field(default_factory=list)
    heartbeat: int = 0

    def __post_init__(self) -> None:
        self.supervisor = Supervisor(1, Idle(heartbeat=self.beats), signal.SIGUSR1)
        self.supervisor._workers[0].pid = 1

    def beats(self, number: int) -> int:
        """Of worker 0."""
        assert number == 0
        return self.heartbeat

    def tick(self, times: int) -> None:
        """Let time pass."""
        for _ in range(times):
            self.supervisor._tick()


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Hanging:
    found = Hanging()
    monkeypatch.setattr(os, "kill", lambda _, number: found.sent.append(number))
    return found


def test_a_worker_that_hangs_is_aborted_and_then_killed(hanging: Hanging) -> None:
    hanging.heartbeat = 7
    hanging.tick(HUNG_TICKS)
    assert hanging.sent == []
    hanging.tick(1)
    assert hanging.sent == [signal.SIGABRT]
    hanging.tick(ABORT_TICKS - 1)
    assert hanging.sent == [signal.SIGABRT]
    hanging.tick(10 * HUNG_TICKS)
    assert hanging.sent == [signal.SIGABRT, signal.SIGKILL]


def test_a_running_or_starting_worker_is_not_killed(hanging: Hanging) -> None:
    hanging.tick(2 * HUNG_TICKS)
    for _ in range(3):
        hanging.heartbeat += 1
        hanging.tick(HUNG_TICKS)
    assert hanging.sent == []


def test_a_worker_that_hangs_before_its_event_loop_runs_is_given_longer(hanging: Hanging) -> None:
    hanging.tick(STARTING_TICKS - 1)
    assert hanging.sent == []
    hanging.tick(1)
    assert hanging.sent == [signal.SIGABRT]
    hanging.tick(ABORT_TICKS)
    assert hanging.sent == [signal.SIGABRT, signal.SIGKILL]


def test_a_worker_that_hangs_while_it_drains_is_killed_too(hanging: Hanging) -> None:
    hanging.heartbeat = 7
    hanging.supervisor._end(signal.SIGTERM)
    hanging.sent.clear()
    hanging.tick(HUNG_TICKS + 1)
    assert hanging.sent == [signal.SIGABRT]


def test_the_third_signal_kills_workers_that_do_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda _, number: sent.append(number))
    supervisor = Supervisor(1, Idle(), signal.SIGUSR1)
    supervisor._workers[0].pid = 1
    for _ in range(3):
        supervisor._end(signal.SIGTERM)
    assert sent == [signal.SIGTERM, signal.SIGUSR1, signal.SIGKILL]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_waits_for_a_worker_that_does_not_handle_it_yet(number: int) -> None:
    """Also where it is ignored, as SIGINT is in what a shell runs in the background."""
    was = signal.signal(number, signal.SIG_IGN)
    reading, writing = os.pipe()

    def work(_: int) -> None:
        # To this thread: another test may have left one that is started again after a fork.
        signal.pthread_kill(threading.get_ident(), number)
        waits = number in signal.sigpending()
        os.write(writing, b"waits" if waits else b"is lost")

    try:
        supervisor = Supervisor(1, Idle(work), signal.SIGUSR1)
        supervisor._start(supervisor._workers[0], set())
        os.close(writing)
        assert os.read(reading, 100) == b"waits"
    finally:
        os.close(reading)
        signal.signal(number, was)
        assert supervisor._workers[0].pid is not None
        os.waitpid(supervisor._workers[0].pid, 0)
