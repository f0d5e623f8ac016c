"""`python -m router.simulator`: one simulated engine, or several on consecutive ports, as a
process.

It is meant for tests and benchmarks, which read the URLs from its output; users run `pd-router
simulate-engines`.
"""

import argparse
import sys
from collections.abc import Sequence

from router.garbage import rarely_collected
from router.simulator.command_line import add_options, config_of
from router.simulator.config import ConfigError
from router.simulator.faults import FaultError
from router.simulator.frontend.server import RunningEngine, serve_until_ended


def main(arguments: list[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Returns 2, with a line of the reason, if it cannot start."""
    options = vars(_parser().parse_args(arguments))
    count = options.pop("count")
    try:
        config = config_of(options)
        serve_until_ended([config.numbered(place) for place in range(count)], _print)
    except (ConfigError, FaultError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 2
    return 0


def _print(engines: Sequence[RunningEngine]) -> None:
    for engine in engines:
        print(f"ready {engine.url}", flush=True)  # noqa: T201


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m router.simulator", description="A vLLM-like engine without a model."
    )
    several, omitted = "engines, on consecutive ports (default 1)", argparse.SUPPRESS
    parser.add_argument("--count", type=int, default=1, metavar="N", help=several)
    parser.add_argument(
        "--port", type=int, default=omitted, metavar="PORT", help="of the first; else free"
    )
    parser.add_argument(
        "--role",
        choices=("prefill", "decode", "encode", "both"),
        default=omitted,
        help="encode: generates nothing; else a label (default both)",
    )
    add_options(parser)
    return parser


if __name__ == "__main__":
    with rarely_collected():
        sys.exit(main())
