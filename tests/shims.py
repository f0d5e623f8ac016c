"""`pd-router`, `pd-bench` and `simulator` as commands of a shell, started as in `tests/forked.py`.

A command in the folder of `shims()` is a tiny program. It sends its arguments, environment and
outputs to this process, forwards signals, and ends with the status of the process that is forked
for it. If it is killed, that process and its group are killed.
"""

import atexit
import contextlib
import functools
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from multiprocessing.connection import Connection, wait
from pathlib import Path

from tests import forked

__all__ = ["shims"]

SHIM = f"""\
#!{sys.executable} -IS
import os, signal, socket, sys
asked = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
asked.connect(os.path.join(os.path.dirname(__file__), "socket"))
words = [os.path.basename(__file__), *sys.argv[1:]]
lines = [os.getcwd(), str(len(words)), *words, *(f"{{n}}={{v}}" for n, v in os.environ.items())]
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: asked.send(bytes([number])))
socket.send_fds(asked, [os.fsencode("\\0".join(lines))], [1, 2])
status = asked.recv(1)
os._exit(status[0] if status else 255)
"""

MOST_BYTES = 1 << 17
"""Of arguments and environment."""


@functools.cache
def shims() -> Path:
    """A folder with the commands; it stays until the end of this process."""
    folder = Path(tempfile.mkdtemp(prefix="shims"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name in forked.ENTRIES:
        (folder / name).write_text(SHIM)
        (folder / name).chmod(0o755)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(folder / "socket"))
    listener.listen(64)
    threading.Thread(target=_accept, args=(listener,), daemon=True).start()
    return folder


def _accept(listener: socket.socket) -> None:
    while True:
        asked, _ = listener.accept()
        threading.Thread(target=_serve, args=(asked,), daemon=True).start()


def _serve(asked: socket.socket) -> None:
    """Start the process that a shim asks for; forward its signals and the exit status."""
    with asked:
        data, descriptors, _, _ = socket.recv_fds(asked, MOST_BYTES, 2)
        if not data:  # the shim was ended before it asked
            return
        folder, count, *rest = map(os.fsdecode, data.split(b"\0"))
        words, variables = rest[: int(count)], rest[int(count) :]
        environment = dict(each.split("=", 1) for each in variables)
        out, err = (Connection(each, readable=False) for each in descriptors)
        with out, err:
            process = forked.fork(tuple(words), out, err, environment, folder, True)
        while process.sentinel not in wait([process.sentinel, asked]):
            number = asked.recv(1)
            with contextlib.suppress(ProcessLookupError):
                if number:
                    os.kill(process.pid or 0, number[0])
                else:
                    os.killpg(process.pid or 0, signal.SIGKILL)
                    break
        status = forked.reap(process)
        with contextlib.suppress(OSError):
            asked.send(bytes([status % 256]))
