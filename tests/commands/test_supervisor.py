"""What the parent of workers does when it cannot have any; tests/e2e has the rest, with workers."""

import logging
import os
import signal
from functools import partial
from typing import NoReturn

import pytest

from router.commands.supervisor import MOST_FAILURES, Supervisor


def test_a_machine_that_has_no_room_for_workers_is_given_up_after_some_tries(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fork() -> NoReturn:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", fork)
    monkeypatch.setattr("router.commands.supervisor.RESTART_SECONDS", 0.0)
    caplog.set_level(logging.ERROR)
    told: list[str] = []
    ending = partial(told.append, "ending")
    status = Supervisor(2, lambda _: None, lambda _: None, ending, signal.SIGUSR1).run()
    assert status == 1
    assert told == ["ending"]
    assert len(caplog.messages) == MOST_FAILURES + 1
    assert caplog.messages[0] == ("worker 0 cannot be started: Resource temporarily unavailable")


def test_the_third_signal_kills_workers_that_do_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda _, number: sent.append(number))
    supervisor = Supervisor(1, lambda _: None, lambda _: None, lambda: None, signal.SIGUSR1)
    supervisor._workers[0].pid = 1
    for _ in range(3):
        supervisor._end(signal.SIGTERM)
    assert sent == [signal.SIGTERM, signal.SIGUSR1, signal.SIGKILL]
