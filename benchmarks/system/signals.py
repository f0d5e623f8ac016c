"""Signals that end a bench: Ctrl-C, a kill, a lost terminal or connection."""

import contextlib
import signal
from collections.abc import Iterator

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def heard() -> tuple[signal.Signals, ...]:
    """Those that end this process. nohup(1) starts one that outlives its terminal."""
    is_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return tuple(each for each in ENDING if not (is_nohup and each is signal.SIGHUP))


def interrupt() -> None:
    """From now on each of them is a KeyboardInterrupt, so that child processes end with us. Also in
    a background job, which starts with SIGINT ignored."""
    for number in heard():
        signal.signal(number, signal.default_int_handler)


@contextlib.contextmanager
def ignored() -> Iterator[None]:
    """What happens inside is not interrupted, nor are processes started there."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
