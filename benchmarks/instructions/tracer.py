"""Runs a module as `python -m` does, and counts its bytecodes by function.

    python -m benchmarks.instructions.tracer ASK ANSWER MODULE ARGUMENT...

ASK and ANSWER are named pipes: each byte in the one is answered in the other with JSON, from
function to [calls, bytecodes] since the byte before.
"""

import os
import runpy
import sys
import threading
from collections import defaultdict
from types import CodeType, FrameType
from typing import Any

import orjson

Counts = defaultdict[CodeType, list[int]]


class Tracer:
    """Sees every call and every bytecode of the thread that it is set in."""

    def __init__(self) -> None:
        self._counts: Counts = defaultdict(lambda: [0, 0])

    def called(self, frame: FrameType, _event: str, _arg: Any) -> Any:
        """A function was entered, or a generator resumed."""
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self._counts[frame.f_code][0] += 1
        return self._inside

    def _inside(self, frame: FrameType, event: str, _arg: Any) -> Any:
        if event == "opcode":
            self._counts[frame.f_code][1] += 1
        return self._inside

    def take(self) -> dict[str, list[int]]:
        """What was counted since the last time, by function."""
        seen, self._counts = self._counts, defaultdict(lambda: [0, 0])
        found: dict[str, list[int]] = {}
        for code, (calls, bytecodes) in seen.items():
            both = found.setdefault(name(code), [0, 0])
            both[0] += calls
            both[1] += bytecodes
        return found


def name(code: CodeType) -> str:
    """A function's place: the end of its file's path, and its qualified name."""
    return f"{'/'.join(code.co_filename.split('/')[-3:])}:{code.co_qualname}"


def _answer(tracer: Tracer, ask: str, answer: str) -> None:
    while True:
        with open(ask, "rb", buffering=0) as asked:
            while asked.read(1):
                with open(answer, "wb") as out:
                    out.write(orjson.dumps(tracer.take()))


def main() -> None:
    """Run the module that the command line names."""
    _, ask, answer, module, *arguments = sys.argv
    tracer = Tracer()
    threading.Thread(target=_answer, args=(tracer, ask, answer), daemon=True).start()
    sys.argv = [module, *arguments]
    sys.path.insert(0, os.getcwd())
    sys.settrace(tracer.called)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
