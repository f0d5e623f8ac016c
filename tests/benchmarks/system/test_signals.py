"""What ends a bench, and what does not."""

import os
import signal
from collections.abc import Iterator

import pytest

from benchmarks.system.signals import ENDING, heard, ignored, interrupt


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """As they were."""
    before = {number: signal.getsignal(number) for number in ENDING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", ENDING)
def test_each_of_them_interrupts(number: signal.Signals) -> None:
    interrupt()
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)


def test_a_background_job_receives_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert signal.SIGINT in heard()


def test_nohup_outlives_its_terminal() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    interrupt()
    assert heard() == (signal.SIGINT, signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGHUP)


def test_ignored_signals_work_again_afterwards() -> None:
    interrupt()
    with ignored():
        for number in ENDING:
            os.kill(os.getpid(), number)
    assert [signal.getsignal(number) for number in ENDING] == [signal.default_int_handler] * 3
