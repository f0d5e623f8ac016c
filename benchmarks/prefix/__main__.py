"""`python -m benchmarks.prefix`: loads with prefixes in common, replayed over HTTP before simulated
engines, through one router after the other; see benchmarks/README.md.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import orjson

from benchmarks.prefix.loads import load
from benchmarks.prefix.measure import Result, measure
from benchmarks.routers.table import ROUTERS

LOADS = {
    "multi-turn": 4.0,
    "agents": 4.0,
    "shared-prefixes": 4.0,
    "one-prefix": 2.0,
    "siblings": 2.0,
    "no-reuse": 3.0,
    "conversation": 8.0,
    "synthetic": 8.0,
}
"""How many times as fast as in virtual time, so that two cores can keep up, and no run takes much
more than a minute."""

ROWS = (
    *("ours-round-robin", "ours", "ours-sed-off", "ours-sed", "ours-sed-events"),
    *("vllm-router-cache-aware", "smg-cache-aware"),
)
COLUMNS = {
    "load": 16,
    "router": 26,
    "hits": 7,
    "TTFT mean": 10,
    "p50": 8,
    "p99": 9,
    "e2e": 9,
    "requests/s": 11,
    "spread": 7,
    "failed": 7,
    "engines' CPU": 13,
}
"""Names, and how wide they are."""


def row(cells: Sequence[str]) -> str:
    """A line of the table; all but names are to the right."""
    widths = list(COLUMNS.values())
    names = (cell.ljust(width) for cell, width in zip(cells[:2], widths[:2], strict=True))
    rest = (cell.rjust(width) for cell, width in zip(cells[2:], widths[2:], strict=True))
    return "".join((*names, *rest))


def shown(result: Result) -> str:
    """One run. Times in ms."""
    times = (result.ttft_mean, result.ttft_p50, result.ttft_p99, result.e2e_mean)
    name = f"{result.router}*{result.routers}" if result.routers > 1 else result.router
    return row(
        [
            result.load,
            name,
            f"{result.hit_rate:.3f}",
            *(f"{1000 * seconds:.0f}" for seconds in times),
            f"{result.requests_per_second:.1f}",
            f"{result.spread:.2f}",
            str(result.failed),
            f"{result.engines_cpu:.2f}",
        ]
    )


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="python -m benchmarks.prefix", description=__doc__)
    made.add_argument(
        "--load", action="append", help="a name, or a file in Mooncake's format; repeat"
    )
    made.add_argument("--router", action="append", choices=[*ROUTERS], help="repeat")
    made.add_argument("--engines", type=int, default=8, metavar="N")
    made.add_argument("--routers", type=int, default=1, metavar="N", help="side by side")
    made.add_argument(
        "--alone", action="store_true", help="several routers of ours do not tell each other"
    )
    made.add_argument("--requests", type=int, metavar="N", help="in all; else the load's own")
    made.add_argument("--speed", type=float, metavar="X", help="times as fast as in virtual time")
    made.add_argument(
        "--answers", type=float, default=1.0, metavar="SHARE", help="of their tokens; less work"
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="append each run to it")
    return made


def main(words: Sequence[str] | None = None) -> int:
    """Measure and print. 0 when no request failed, 1 otherwise, 2 for bad usage."""
    given = parser().parse_args(words)
    failed = 0
    print(row([*COLUMNS]), flush=True)
    with tempfile.TemporaryDirectory(prefix="pd-router-prefix-") as logs:
        for name in given.load or LOADS:
            try:
                speed = given.speed or LOADS.get(name, 1.0)
                what = load(name, given.engines, given.requests, speed, given.answers)
            except ValueError as error:
                parser().error(str(error))
            for each in given.router or ROWS:
                result = measure(
                    what,
                    ROUTERS[each],
                    given.routers,
                    given.engines,
                    Path(logs),
                    told=not given.alone,
                )
                failed += result.failed
                print(shown(result), flush=True)
                if given.json:
                    with given.json.open("ab") as file:
                        file.write(orjson.dumps(result.as_dict()) + b"\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
