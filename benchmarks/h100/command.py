"""`h100`: pack what the GPU machine lacks; make the runs there. See benchmarks/h100/README.md."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.command_line import Parser, program
from benchmarks.h100.pack import NotPacked, pack
from benchmarks.h100.profiles import PROFILES, RUNS
from benchmarks.system.processes import REPOSITORY

FOLDER = REPOSITORY / ".h100"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = Parser(prog=program("h100"), description="Real vLLM engines on one lent GPU.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    packing = commands.add_parser("pack", help="fetch and pack what the GPU machine lacks")
    packing.add_argument("--to", type=Path, help="folder; default: .h100/PROFILE")
    running = commands.add_parser("run", help="start engines, make the runs, keep the results")
    running.add_argument("--out", type=Path, required=True, help="folder for the results")
    running.add_argument("--work", type=Path, default=Path("/tmp/pd-router-h100"), help="models")
    running.add_argument("--parts", type=Path, help="the packed parts, for their manifest")
    running.add_argument("--only", help=f"of {','.join(RUNS)}, with commas; default: all")
    running.add_argument("--seconds", type=float, help="for all runs; default: the profile's")
    for each in (packing, running):
        each.add_argument("--profile", choices=PROFILES, default="h100")
    return top


def main(argv: Sequence[str]) -> int:
    """Exit status: 0 all done; 1 a run failed or had no time; 2 bad usage."""
    arguments = parser().parse_args(argv)
    profile = PROFILES[arguments.profile]
    if arguments.command == "pack":
        folder = arguments.to or FOLDER / profile.name
        try:
            for path in pack(profile, folder):
                print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB")
        except NotPacked as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        return 0
    # matplotlib and aiohttp are not needed to pack.
    from benchmarks.h100 import runs  # noqa: PLC0415

    names = arguments.only.split(",") if arguments.only else list(RUNS)
    if unknown := sorted(set(names) - set(RUNS)):
        parser().error(f"--only: {unknown[0]} is none of {', '.join(RUNS)}")
    return runs.carry_out(
        profile,
        [each for each in RUNS if each in names],
        runs.Places(arguments.out, arguments.work, arguments.parts),
        arguments.seconds or profile.total,
    )
