"""Lines that are read late or never: they wait within bounds, and no writer waits."""

import fcntl
import os
import resource
import select
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.telemetry import logs
from router.telemetry.logs import LineWriter

SECONDS = 60.0
"""A deadline that only a failing test meets."""

NOTICE = b"dropped "

FULL = b"x" * 4095 + b"\n"
"""All that a pipe takes here."""

ROOM = 8192
"""For lines that wait, in these tests."""


def notice(count: int, cause: str) -> bytes:
    return b"%b%d %b\n" % (NOTICE, count, cause.encode())


class Pipe:
    """A pipe of one page, the writer on its one end, and what has been read from the other."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        fcntl.fcntl(self.writing, fcntl.F_SETPIPE_SZ, 4096)
        self.writer = LineWriter(self.writing, notice)
        self.text = b""

    def read(self, size: int) -> bytes:
        """Read until so much has come; all that was read so far."""
        while len(self.text) < size:
            assert select.select([self.reading], [], [], SECONDS)[0]
            self.text += os.read(self.reading, 4096)
        return self.text

    def read_all(self) -> bytes:
        """Read until the writer has written all that waits; all that was read so far."""
        done = threading.Event()

        def drain() -> None:
            while data := os.read(self.reading, 4096):
                self.text += data.removesuffix(b"\0")
                if data.endswith(b"\0"):
                    break
            done.set()

        reader = threading.Thread(target=drain)
        reader.start()
        assert self.writer.wait(SECONDS)
        os.write(self.writing, b"\0")
        reader.join(SECONDS)
        assert done.is_set()
        return self.text

    def close(self) -> None:
        os.close(self.reading)  # a thread that hangs in a write is freed by that
        assert self.writer.wait(SECONDS)
        self.writer.close()
        os.close(self.writing)


@pytest.fixture(autouse=True)
def _little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_BYTES", ROOM)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    found = Pipe()
    yield found
    found.close()


def test_lines_come_out_in_their_order(pipe: Pipe) -> None:
    lines = [b"line %d\n" % number for number in range(200)]
    for line in lines:
        pipe.writer.write(line)
    assert pipe.read_all() == b"".join(lines)
    assert pipe.writer.dropped == 0


def test_lines_without_room_are_dropped_counted_and_reported_once(pipe: Pipe) -> None:
    lines = [b"%04d %b\n" % (number, b"x" * 94) for number in range(1000)]
    for line in lines:
        pipe.writer.write(line)  # no reader: the pipe takes 40 lines, and 81 fit into the queue
    kept = 1000 - pipe.writer.dropped
    assert 81 <= kept <= 81 + 41 + 1
    told = notice(1000 - kept, "it was not read fast enough")
    wanted = b"".join(lines[:kept]) + told
    assert pipe.read(len(wanted)) == wanted
    assert pipe.writer.wait(SECONDS)  # the thread must know, too, that it has reported
    pipe.writer.write(b"on it goes\n")
    assert pipe.read_all().endswith(told + b"on it goes\n")


def test_after_a_gap_nothing_is_taken_until_all_is_written(pipe: Pipe) -> None:
    for _ in range(3):
        pipe.writer.write(FULL)
    pipe.writer.write(b"y" * ROOM + b"\n")
    assert pipe.writer.dropped == 1
    pipe.writer.write(b"small\n")
    assert pipe.writer.dropped == 2
    pipe.read_all()
    pipe.writer.write(b"small\n")
    assert pipe.writer.dropped == 2


def test_waiting_for_no_replica_ends(pipe: Pipe) -> None:
    for _ in range(2):
        pipe.writer.write(FULL)
    assert not pipe.writer.wait(0.01)
    pipe.read_all()
    assert pipe.writer.wait(0.0)


@given(sizes=st.lists(st.integers(1, 3000) | st.none(), max_size=60))
def test_all_messages_are_read_except_reported_gaps(sizes: list[int | None]) -> None:
    pipe = Pipe()
    wrote: list[bytes] = []
    for size in sizes:
        if size is None:
            pipe.read_all()
            continue
        wrote.append(b"%d %b\n" % (len(wrote), b"x" * size))
        pipe.writer.write(wrote[-1])
    lines = pipe.read_all().splitlines(keepends=True)
    dropped = pipe.writer.dropped
    pipe.close()
    place = told = 0
    for line in lines:
        if line.startswith(NOTICE):
            told += int(line.split()[1])
            place += int(line.split()[1])
        else:
            assert line == wrote[place]
            place += 1
    assert place == len(wrote)
    assert told == dropped


def test_unwritten_lines_are_counted_and_reported_later(pipe: Pipe) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    writer = LineWriter(full, notice)
    writer.write(b"a\nb\n")
    writer.write(b"c\n")
    writer.wait(SECONDS)
    assert writer.dropped == 3
    os.dup2(pipe.writing, full)
    writer.write(b"d\n")
    writer.wait(SECONDS)
    assert pipe.read_all() == b"d\n" + notice(3, "No space left on device")
    assert writer.dropped == 3
    writer.close()
    os.close(full)


def test_a_closed_pipe_ends_nothing(pipe: Pipe) -> None:
    os.close(pipe.reading)
    pipe.writer.write(b"a\n")
    pipe.writer.wait(SECONDS)
    assert pipe.writer.dropped == 1
    pipe.reading = os.open("/dev/null", os.O_RDONLY)  # to be closed


@pytest.fixture
def limited_files() -> Iterator[Callable[[int], None]]:
    """Limits how long files may become: writes end there."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_line_behind_half_a_line_begins_anew(
    tmp_path: Path, limited_files: Callable[[int], None]
) -> None:
    file = tmp_path / "log"
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    writer = LineWriter(descriptor, notice)
    limited_files(6)
    writer.write(b"0123456789\n")
    writer.wait(SECONDS)
    limited_files(1 << 20)
    writer.write(b"next\n")
    writer.wait(SECONDS)
    assert file.read_bytes() == b"012345\nnext\n" + notice(1, "File too large")
    writer.close()
    os.close(descriptor)


def test_a_descriptor_that_others_have_made_non_blocking_loses_nothing(pipe: Pipe) -> None:
    os.set_blocking(pipe.writing, False)
    lines = b"".join(b"line %d\n" % number for number in range(700))
    pipe.writer.write(lines)
    assert pipe.read(len(lines)) == lines


def test_a_pipe_with_room_needs_no_thread(pipe: Pipe) -> None:
    pipe.writer.write(b"a\n")
    assert os.read(pipe.reading, 10) == b"a\n"
    assert pipe.writer._thread is None


def test_blocked_writes_go_to_the_thread(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "NOWAIT", None)  # as of a Python for an older C library
    monkeypatch.delattr(os, "RWF_NOWAIT")
    pipe.writer.write(b"a line\n")
    assert pipe.read_all() == b"a line\n"


def test_a_file_is_written_by_the_thread(tmp_path: Path) -> None:
    file = tmp_path / "log"
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    writer = LineWriter(descriptor, notice)
    for line in (b"a\n", b"b\n"):
        writer.write(line)
    assert writer._thread is not None
    assert writer.wait(SECONDS)
    assert file.read_bytes() == b"a\nb\n"
    writer.close()
    os.close(descriptor)


def test_signals_are_left_to_the_main_thread(pipe: Pipe) -> None:
    pipe.writer.write(FULL)
    pipe.writer.write(b"a\n")
    pipe.read_all()
    [thread] = [t for t in threading.enumerate() if t is pipe.writer._thread]
    status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP, signal.SIGUSR1):
        assert blocked >> (number - 1) & 1


def test_a_thread_that_cannot_be_started_is_started_with_the_next_line(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        pipe.writer.write(FULL)
        pipe.writer.write(b"a\n")
    pipe.writer.write(b"b\n")
    assert pipe.read_all() == FULL + b"a\nb\n"
