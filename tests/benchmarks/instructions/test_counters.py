import sys

import pytest

from benchmarks.instructions import counters
from benchmarks.instructions.counters import parse_callgrind, parse_strace

DUMP = """\
# callgrind format
version: 1
creator: callgrind-3.19.0
pid: 4242
cmd:  python -m router serve
part: 3


desc: I1 cache:
desc: Timerange: Basic block 1205 - 99123
desc: Trigger: Client Request: dump

positions: line
events: Ir
summary: 44107213


ob=(1) /usr/lib/x86_64-linux-gnu/libc.so.6
fl=(1) ???
fn=(1) totals: 7
0 3
cfn=(2)
calls=1 0
0 44107210

totals: 44107213
"""

TABLE = """\
strace: Process 4242 attached
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 45.90    0.001234           2       482           epoll_wait
 31.17    0.000838           3       240         2 write
 22.93    0.000616           2       241           read
------ ----------- ----------- --------- --------- ----------------
100.00    0.002688           2       963         2 total
"""


def test_the_total_of_a_dump() -> None:
    assert parse_callgrind(DUMP) == 44107213


def test_a_dump_without_a_total_is_refused() -> None:
    with pytest.raises(ValueError, match="no total"):
        parse_callgrind("fn=(1) totals: 7\n")


def test_the_table_of_strace_with_and_without_errors() -> None:
    assert parse_strace(TABLE) == {"epoll_wait": 482, "write": 240, "read": 241}


def test_a_process_that_made_no_call_has_none() -> None:
    assert parse_strace("") == {}


def test_a_missing_tool_is_reported_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert counters.missing("strace") == "strace is not installed: apt-get install strace"
    monkeypatch.setattr("shutil.which", lambda _: sys.executable)
    assert counters.missing("strace") is None
