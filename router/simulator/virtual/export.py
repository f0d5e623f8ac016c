"""Exports loads with common prefixes as lines of JSON, to be replayed over HTTP (`python -m
benchmarks.prefix`): `python -m router.simulator.virtual.export --help`.

The first line is the engine that the load is made for. Each further line is a session: `at` in
seconds, and its `turns` as [prompt tokens, answer tokens, seconds of pause before it, blocks]. A
block is a number for its contents; the prompt's blocks come first, then the answer's.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import orjson

from router.simulator.virtual.scenarios.catalogue import replayed, scenario
from router.simulator.virtual.scenarios.pools import Size
from router.simulator.virtual.scenarios.prefixes import LOADS
from router.simulator.virtual.scenarios.traces import TraceError, sessions
from router.simulator.virtual.values import Scenario

__all__ = ["lines", "main"]


def lines(made: Scenario) -> Iterator[bytes]:
    """Yields the scenario's engine and sessions."""
    yield orjson.dumps(asdict(made.model))
    for session in made.sessions:
        turns = [(turn.prompt, turn.output, turn.pause, turn.contents) for turn in session.turns]
        yield orjson.dumps({"at": session.at, "turns": turns})


def main(words: Sequence[str] | None = None) -> int:
    """Print a load. Returns 2, with a line of the reason, if the scenario has none."""
    parser = argparse.ArgumentParser(prog="python -m router.simulator.virtual.export")
    known = f"one of {', '.join(LOADS)}, or a file in Mooncake's format"
    parser.add_argument("load", help=known)
    parser.add_argument("--engines", type=int, default=8, metavar="N")
    parser.add_argument("--requests", type=int, metavar="N", help="in all; else the load's own")
    given = parser.parse_args(words)
    size = Size(engines=given.engines, requests=given.requests)
    try:
        made = scenario(given.load, size) if given.load in LOADS else _replayed(given.load, size)
    except (OSError, TraceError) as error:
        print(f"error: {given.load} is not {known}: {error}", file=sys.stderr)  # noqa: T201
        return 2
    for line in lines(made):
        sys.stdout.buffer.write(line + b"\n")
    return 0


def _replayed(path: str, size: Size) -> Scenario:
    with Path(path).open("rb") as trace:
        return replayed(path, size, tuple(sessions(trace, limit=size.requests)))


if __name__ == "__main__":
    sys.exit(main())
