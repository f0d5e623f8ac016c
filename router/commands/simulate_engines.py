"""pd-router simulate-engines: simulated vLLM engines for trying a router, with suggested
commands."""

import asyncio
import shlex
import signal
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, Literal

import uvloop
from rich.console import Console

from router.commands.console import make_console
from router.commands.usage import UsageError
from router.simulator.command_line import config_of
from router.simulator.config import ConfigError, EngineConfig
from router.simulator.faults import FaultError
from router.simulator.frontend.server import RunningEngine, serve_engine

__all__ = ["run"]

THRESHOLD = 256
"""Threshold in tokens for the suggested router: a prompt of 1,000 characters is long enough for a
remote prefill, so that both modes can be tried by hand."""

ROUTER = "http://127.0.0.1:8000"
"""Default address of `pd-router serve`."""

ENDS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True)
class Pools:
    """Number of engines of each kind."""

    prefill: int
    decode: int

    def __post_init__(self) -> None:
        if self.prefill < 0:
            raise UsageError(f"--prefill {self.prefill}: must not be below 0")
        if self.decode < 1:
            raise UsageError(f"--decode {self.decode}: must be at least 1")


def run(options: Mapping[str, Any]) -> int:
    """Serve until SIGTERM or SIGINT. Raises UsageError if the engines cannot be started."""
    given = dict(options)
    pools = Pools(given.pop("prefill"), given.pop("decode"))
    port = given.pop("port")
    if not 0 <= port <= 65536 - pools.prefill - pools.decode:
        raise UsageError(f"--port {port}: there are no such ports for all engines")
    try:
        config = config_of(given)
    except (ConfigError, FaultError) as error:
        raise UsageError(str(error)) from None
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config, pools, port))
    return 0


async def _serve(config: EngineConfig, pools: Pools, port: int) -> None:
    stop = asyncio.Event()
    for number in ENDS:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        roles: list[Literal["prefill", "decode"]] = ["prefill"] * pools.prefill
        roles += ["decode"] * pools.decode
        running = []
        for place, role in enumerate(roles):
            events = config.kv_events_port
            engine = replace(
                config,
                role=role,
                port=port + place if port else 0,
                kv_events_port=events + 2 * place * config.data_parallel_size if events else 0,
            )
            try:
                running.append(await stack.enter_async_context(serve_engine(engine)))
            except OSError as error:
                raise UsageError(
                    f"--port: cannot listen on {config.host}:{engine.port}: {error.strerror}; "
                    "--port 0 takes free ones"
                ) from None
        _print(make_console(), running)
        await stop.wait()


def _print(console: Console, engines: Sequence[RunningEngine]) -> None:
    """Print the engines and suggested commands."""
    prefill = [engine.url for engine in engines if engine.config.role == "prefill"]
    decode = [engine.url for engine in engines if engine.config.role == "decode"]
    for role, urls in (("prefill", prefill), ("decode", decode)):
        for url in urls:
            console.print(f"ready {role:<7} {url}", soft_wrap=True)
    console.print("\nCtrl-C ends them. In other terminals:\n", soft_wrap=True)
    for line in next_steps(prefill, decode, engines[0].config):
        console.print(f"  {line}", soft_wrap=True)


def next_steps(
    prefill: Sequence[str], decode: Sequence[str], config: EngineConfig
) -> tuple[str, ...]:
    """Shell commands: check, serve, send a request, measure."""
    flags = [f"--prefill {','.join(prefill)}"] if prefill else []
    flags.append(f"--decode {','.join(decode)}")
    cache = " --prefix-cache events" if config.kv_events else ""
    if config.api_key is not None:
        flags.append(f"--engine-api-key {shlex.quote(config.api_key)}")
    pools, model = " ".join(flags), shlex.quote(config.model)
    serve = f" --routing-threshold {THRESHOLD}" if prefill else ""
    body = f'{{"model": "{config.model}", "prompt": "Hello", "max_tokens": 20, "stream": true}}'
    return (
        f"pd-router check --try {pools}",
        f"pd-router serve {pools}{serve}{cache}",
        f"curl -N {ROUTER}/v1/completions -H 'content-type: application/json' "
        f"-d {shlex.quote(body)}",
        f"pd-bench validate --url {ROUTER} --model {model} --gpus {len(decode)} --profile smoke "
        "--throughput '>= 1' --ttft-p99 '<= 1000'",
    )
