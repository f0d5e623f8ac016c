"""Sessions of requests with prefixes in common, as text.

They are those of `pd-router simulate` (exported by router/simulator/virtual/export.py), so figures
in virtual time and over HTTP have the same load.
"""

import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import orjson

CHARACTERS = 4
"""Of a token of the simulated engines, and about of real ones."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A request: the user's text, and the length of the answer."""

    said: str
    output: int
    """Tokens."""
    pause: float
    """Seconds since the answer before."""


@dataclass(frozen=True, slots=True)
class Session:
    """Requests of one client; each has the whole conversation before it."""

    at: float
    turns: Sequence[Turn]


@dataclass(frozen=True, slots=True)
class Load:
    """Sessions, and the engine that they are made for."""

    name: str
    engine: dict[str, Any]
    sessions: Sequence[Session]

    @property
    def requests(self) -> int:
        """In all."""
        return sum(len(session.turns) for session in self.sessions)


def load(name: str, engines: int, requests: int | None, speed: float, answers: float = 1.0) -> Load:
    """The load of that name; all that it does takes 1/speed of the time. Answers have `answers` of
    their tokens, and clients say the rest themselves. Raises ValueError."""
    first, *lines = _exported(name, engines, requests)
    engine = orjson.loads(first)
    size = int(engine["block_size"])
    engine["step_seconds"] /= speed
    engine["prefill_tokens_per_second"] *= speed
    sessions = (_session(orjson.loads(line), size, speed, answers) for line in lines)
    return Load(name, engine, [each for each in sessions if each.turns])


@cache
def _exported(name: str, engines: int, requests: int | None) -> Sequence[bytes]:
    """The engine, and the sessions in virtual time."""
    command = [sys.executable, "-m", "router.simulator.virtual.export", name]
    command += ["--engines", str(engines)]
    command += ["--requests", str(requests)] if requests else []
    told = subprocess.run(command, capture_output=True, check=False)
    if told.returncode:
        raise ValueError(told.stderr.decode().strip())
    return told.stdout.splitlines()


def _session(told: dict[str, Any], size: int, speed: float, answers: float) -> Session:
    turns, at = [], 0
    for prompt, whole, pause, blocks in told["turns"]:
        output = max(1, round(whole * answers))
        # What is behind the last full block is of this request alone: it fills none.
        said = "".join(_text(block, size) for block in blocks[at // size : prompt // size])
        turns.append(Turn(said or _text(prompt, 1), output, pause / speed))
        at = prompt + output
    return Session(told["at"] / speed, turns)


@lru_cache(maxsize=1 << 14)
def _text(block: int, size: int) -> str:
    """The text of a block. Equal numbers are equal texts; others have no common prefix."""
    return random.Random(block).randbytes(size * CHARACTERS // 2).hex()
