"""`python -m router.simulator`: one engine, or several on consecutive ports, as a process."""

import argparse
import asyncio
import json
import signal
import sys
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import uvloop

from router.simulator.config import ConfigError, EngineConfig
from router.simulator.faults import FaultError, Faults
from router.simulator.frontend.server import serve_engine


def main(arguments: list[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Returns 2, with a line that says why, if it cannot start."""
    options = vars(_parser().parse_args(arguments))
    count = options.pop("count")
    try:
        config = EngineConfig(**_values(options))
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
            engine = await engines.enter_async_context(serve_engine(replace(config, port=port)))
            print(f"ready {engine.url}", flush=True)  # noqa: T201
        await stop.wait()


def _values(options: dict[str, Any]) -> dict[str, Any]:
    """The fields of EngineConfig; milliseconds become seconds, what was not said stays out."""
    values = {name: value for name, value in options.items() if value is not None}
    for name in ("step", "step_per_sequence"):
        if (milliseconds := values.pop(f"{name}_ms", None)) is not None:
            values[name.replace("step", "step_s", 1)] = milliseconds / 1000
    values["loras"] = tuple(values.pop("lora", ()))
    values["receivers"] = dict(values.pop("receiver", ()))
    if "faults" in values:
        values["faults"] = Faults.parse(values["faults"])
    return values


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m router.simulator",
        description="A vLLM-like engine without a model.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        argument_default=None,
    )
    parser.add_argument("--count", type=int, default=1, help="engines, on consecutive ports")
    for flag, kind, text in _FLAGS:
        parser.add_argument(flag, type=kind, help=text)
    parser.add_argument("--role", choices=("prefill", "decode", "both"))
    parser.add_argument("--connector", choices=("nixl", "lmcache", "none"))
    parser.add_argument("--kv-load-failure-policy", choices=("fail", "recompute"))
    parser.add_argument("--kv-params-on-stop", action="store_true", default=None)
    parser.add_argument("--prompt-tokens-details", action="store_true", default=None)
    parser.add_argument("--no-prefix-caching", dest="prefix_caching", action="store_false")
    parser.add_argument("--lora", action="append", help="a further model name; may be repeated")
    parser.add_argument(
        "--receiver",
        action="append",
        type=_pair,
        metavar="HOST:INIT_PORT=URL",
        help="LMCache: where the simulator of that decoder is; may be repeated",
    )
    return parser


def _pair(text: str) -> tuple[str, str]:
    name, found, url = text.partition("=")
    if not found:
        raise argparse.ArgumentTypeError(f"expected HOST:INIT_PORT=URL, got {text}")
    return name, url


_FLAGS: tuple[tuple[str, Any, str], ...] = (
    ("--host", str, "address to listen on"),
    ("--port", int, "first port; 0 lets the system choose"),
    ("--model", str, "the model name"),
    ("--version", str, "the vLLM version that /version tells"),
    ("--engine-id", str, "as NIXL knows this engine"),
    ("--api-key", str, "required on /v1"),
    ("--keep-alive-s", float, "idle connections are closed after so long"),
    ("--sse-keep-alive-s", float, "comment in streams that are silent for so long"),
    ("--max-model-len", int, "tokens of prompt and answer together"),
    ("--max-num-seqs", int, "sequences in a batch"),
    ("--max-num-batched-tokens", int, "tokens in a step"),
    ("--max-num-queued-reqs", int, "requests that may wait; more are answered 503"),
    ("--step-ms", float, "time of a step"),
    ("--step-per-sequence-ms", float, "what each sequence of the batch adds to it"),
    ("--prefill-tokens-per-second", float, "speed of prefill"),
    ("--block-size", int, "tokens per KV block"),
    ("--total-blocks", int, "KV blocks"),
    ("--eos-one-in", int, "how rarely a sequence ends by itself; 0 for never"),
    ("--kv-lease-s", float, "how long KV blocks are kept for a decode engine"),
    ("--kv-tokens-per-second", float, "speed of KV transfers"),
    ("--kv-params-extra", json.loads, "JSON object put into the KV parameters"),
    ("--stop-after-death-s", float, "a dead engine's server stops after so long"),
    ("--notify", str, "LMCache: host:port of the router's ZeroMQ socket"),
    ("--notify-delay-s", float, "LMCache: wait before notifying"),
    ("--request-log", int, "requests remembered for /sim/requests"),
    ("--seed", int, "for faults at a rate"),
    ("--faults", json.loads, "JSON object, as for POST /sim/faults"),
)


if __name__ == "__main__":
    sys.exit(main())
