"""Fuzzes a target with atheris, guided by coverage: `python -m tests.fuzz TARGET --seconds 60`.

It begins with the corpus, the fragments and what earlier runs found: inputs that reach further stay
in the directory `found`, as short as they were made, so that a run continues where the last one
ended. Inputs that break a target are written to the directory `crashes`; once fixed, they go to the
corpus. Coverage is that of Python code: `make clean-compiled`.
"""

import argparse
import sys
from pathlib import Path

try:
    import atheris
except ImportError:
    sys.exit("the fuzzers need atheris: pip install 'pd-router[fuzz]'")

with atheris.instrument_imports(include=["router"]):
    from tests.fuzz.targets import TARGETS

from tests.fuzz.fragments import FRAGMENTS

HERE = Path(__file__).parent
MAX_BYTES = 4096


def main() -> None:
    """Run until the time or the number of runs is over, or something breaks."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=0, help="0: no limit")
    parser.add_argument("--runs", type=int, default=-1, help="-1: no limit")
    parser.add_argument("--found", type=Path, default=HERE / "found", help="%(default)s")
    asked = parser.parse_args()
    crashes = HERE / "crashes"
    crashes.mkdir(exist_ok=True)
    found: Path = asked.found / asked.target
    found.mkdir(parents=True, exist_ok=True)
    for number, fragment in enumerate(FRAGMENTS[asked.target]):
        (found / f"fragment-{number}").write_bytes(fragment)
    atheris.Setup(
        [
            sys.argv[0],
            str(found),
            str(HERE / "corpus" / asked.target),
            f"-max_total_time={asked.seconds}",
            f"-runs={asked.runs}",
            f"-max_len={MAX_BYTES}",
            f"-artifact_prefix={crashes}/{asked.target}-",
        ],
        TARGETS[asked.target],
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
