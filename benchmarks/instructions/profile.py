"""Where a Python router's work is: bytecodes and calls per unit, by function.

Bytecodes exclude work in C (orjson, uvloop, the interpreter's own functions). Their shares show a
place, not a gain: for that count instructions before and after.
"""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import orjson

CALLS, BYTECODES = "calls ", "bytecodes "
"""What a name in a sample begins with; the function follows."""


class Bytecodes:
    """A tool that counts bytecodes and calls by function."""

    def __init__(self, place: Path) -> None:
        self._ask, self._answer = place / "ask", place / "answer"
        for pipe in (self._ask, self._answer):
            os.mkfifo(pipe)

    def wrap(self, command: Sequence[str]) -> list[str]:
        """The command must be `python -m MODULE ARGUMENT...`."""
        python, dash_m, *module = command
        pipes = (str(self._ask), str(self._answer))
        return [python, dash_m, "benchmarks.instructions.tracer", *pipes, *module]

    def begin(self, root: int) -> None:
        self._take()

    def count(self, root: int, work: Callable[[], None]) -> Counter[str]:
        self._take()
        work()
        return self._take()

    def _take(self) -> Counter[str]:
        with self._ask.open("wb") as ask:
            ask.write(b"?")
        counts: Counter[str] = Counter()
        with self._answer.open("rb") as answer:
            for function, (calls, bytecodes) in orjson.loads(answer.read()).items():
                counts[CALLS + function] = calls
                counts[BYTECODES + function] = bytecodes
        return counts
