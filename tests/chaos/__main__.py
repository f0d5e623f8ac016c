"""`python -m tests.chaos`: all faults one by one and in random pairs, for several seeds."""

import argparse
import asyncio
import sys

import uvloop

from tests.chaos.faults import FAULTS
from tests.chaos.run import REQUESTS, run


def main() -> int:
    """Run; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1, help="how many (default 1)")
    parser.add_argument("--first", type=int, default=1, help="the first of them (default 1)")
    parser.add_argument("--singles", type=int, default=len(FAULTS), help="faults one by one")
    parser.add_argument("--pairs", type=int, default=12, help="pairs of faults (default 12)")
    parser.add_argument(
        "--requests", type=int, default=REQUESTS, help=f"per fault (default {REQUESTS})"
    )
    parser.add_argument(
        "--only", action="append", choices=FAULTS, metavar="FAULT", help="alone; may be repeated"
    )
    asked = parser.parse_args()
    bad = 0
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for seed in range(asked.first, asked.first + asked.seeds):
            verdict = runner.run(
                run(
                    seed,
                    singles=asked.singles,
                    pairs=asked.pairs,
                    requests=asked.requests,
                    only=asked.only,
                )
            )
            print(verdict, flush=True)
            bad += bool(verdict.faults)
    print(f"{asked.seeds - bad} of {asked.seeds} seeds are green")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
