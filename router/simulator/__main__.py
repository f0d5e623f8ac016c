"""`python -m router.simulator`: one simulated engine, or several on consecutive ports, as a
process.

It is meant for tests and benchmarks, which read the URLs from its output; users run `pd-router
simulate-engines`.
"""

import argparse
import asyncio
import signal
import sys
from contextlib import AsyncExitStack
from dataclasses import replace

import uvloop

from router.garbage import rarely_collected
from router.simulator.command_line import add_options, config_of
from router.simulator.config import ConfigError, EngineConfig
from router.simulator.faults import FaultError
from router.simulator.frontend.server import serve_engine


def main(arguments: list[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Returns 2, with a line that tells why, if it cannot start."""
    options = vars(_parser().parse_args(arguments))
    count = options.pop("count")
    try:
        config = config_of(options)
    except (ConfigError, FaultError) as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 2
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(_serve(config, count))
        except OSError as error:
            print(f"error: {error}", file=sys.stderr)  # noqa: T201
            return 2
    return 0


async def _serve(config: EngineConfig, count: int) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with AsyncExitStack() as engines:
        for place in range(count):
            port = config.port + place if config.port else 0
            first = 2 * place * config.data_parallel_size
            events = config.kv_events_port + first if config.kv_events_port else 0
            one = replace(config, port=port, kv_events_port=events)
            engine = await engines.enter_async_context(serve_engine(one))
            print(f"ready {engine.url}", flush=True)  # noqa: T201
        await stop.wait()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m router.simulator", description="A vLLM-like engine without a model."
    )
    add = parser.add_argument
    add(
        "--count",
        type=int,
        default=1,
        metavar="N",
        help="engines, on consecutive ports (default 1)",
    )
    add(
        "--port",
        type=int,
        default=argparse.SUPPRESS,
        metavar="PORT",
        help="of the first; else free",
    )
    add(
        "--role",
        choices=("prefill", "decode", "both"),
        default=argparse.SUPPRESS,
        help="a label in the log of requests (default both)",
    )
    add_options(parser)
    return parser


if __name__ == "__main__":
    with rarely_collected():
        sys.exit(main())
