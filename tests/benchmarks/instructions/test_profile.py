import subprocess
import sys
from collections import Counter
from pathlib import Path

from benchmarks.instructions.profile import BYTECODES, CALLS, Bytecodes

# Doubles a number so often as the line that it reads says.
PROGRAM = """
import sys
def double(number):
    return 2 * number
def work(times):
    for _ in range(times):
        double(1)
for line in sys.stdin:
    work(int(line))
    print("done", flush=True)
"""
DOUBLE = "doubling.py:double"


def test_calls_and_bytecodes_are_counted_by_function(tmp_path: Path) -> None:
    (tmp_path / "doubling.py").write_text(PROGRAM)
    tool = Bytecodes(tmp_path)
    command = tool.wrap([sys.executable, "-m", "doubling"])
    repository = Path(__file__).parents[3]
    with subprocess.Popen(
        ["env", f"PYTHONPATH={repository}", *command],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:

        def work(times: int) -> Counter[str]:
            assert process.stdin is not None
            assert process.stdout is not None
            stdin, stdout = process.stdin, process.stdout

            def ask() -> None:
                stdin.write(f"{times}\n")
                stdin.flush()
                assert stdout.readline() == "done\n"

            return tool.count(process.pid, ask)

        work(1)  # from Python 3.12 on a function's first call is not seen whole
        few, many = work(10), work(110)
        process.communicate(timeout=60)
    [key] = [each for each in few if each.startswith(CALLS) and each.endswith(DOUBLE)]
    name = key.removeprefix(CALLS)
    assert (few[CALLS + name], many[CALLS + name]) == (10, 110)
    assert many[BYTECODES + name] == 11 * few[BYTECODES + name] > 0
