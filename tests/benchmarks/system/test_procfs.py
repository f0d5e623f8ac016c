import os
import subprocess
import sys

from benchmarks.system import procfs

FIELDS = "S 7 42 42 0 -1 4194560 100 0 0 0 250 50 20 10 20 0 4 0 12345 1000 200"


def test_a_process_may_have_any_name() -> None:
    stat = procfs.parse_stat(f"42 (a (b) c d) {FIELDS}\n")
    assert (stat.pid, stat.parent) == (42, 7)
    assert stat.cpu_s * procfs.TICKS_PER_S == 330


def test_this_process_is_in_its_parents_tree() -> None:
    assert os.getpid() in [stat.pid for stat in procfs.tree(os.getppid())]
    assert procfs.tree(os.getpid())[0].pid == os.getpid()


def test_the_peak_remains_when_memory_is_given_back() -> None:
    # a process of its own, for this one's size changes while it is measured
    code = "import sys; held = b'x' * 2**26; del held; print(flush=True); sys.stdin.read()"
    args = [sys.executable, "-c", code]
    with subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        rss, peak = procfs.rss_bytes(child.pid), procfs.peak_rss_bytes(child.pid)
    assert rss > 1_000_000
    assert peak - rss > 2**25


def test_a_process_that_is_not_there() -> None:
    missing = 2**22 + 1  # above the kernel's largest process id
    assert procfs.tree(missing) == []
    assert procfs.cpu_s(missing) == procfs.peak_rss_bytes(missing) == 0
