"""pd-router simulate-engines: simulated vLLM engines for trying a router, with suggested
commands."""

import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from rich.console import Console

from router.commands.console import make_console
from router.commands.flags import UsageError
from router.simulator.command_line import config_of
from router.simulator.config import ConfigError, EngineConfig
from router.simulator.faults import FaultError
from router.simulator.frontend.server import CannotListen, RunningEngine, serve_until_ended

__all__ = ["run"]

THRESHOLD = 256
"""Threshold in tokens for the suggested router: a prompt of 1,000 characters is long enough for a
remote prefill, so that both modes can be tried by hand."""

ROUTER = "http://127.0.0.1:8000"
"""Default address of `pd-router serve`."""


ROLES = ("prefill", "decode", "encode")


def run(options: Mapping[str, Any]) -> int:
    """Serve until SIGTERM or SIGINT. Raises UsageError if the engines cannot be started."""
    given = dict(options)
    prefill, decode, encode = (given.pop(name) for name in ROLES)
    for name, count in (("prefill", prefill), ("encode", encode)):
        if count < 0:
            raise UsageError(f"--{name} {count}: must not be below 0")
    if decode < 1:
        raise UsageError(f"--decode {decode}: must be at least 1")
    if not 0 <= given["port"] <= 65536 - prefill - decode - encode:
        raise UsageError(f"--port {given['port']}: there are no such ports for all engines")
    try:
        config = config_of(given)
        roles = ["prefill"] * prefill + ["decode"] * decode + ["encode"] * encode
        engines = [config.numbered(place, role=role) for place, role in enumerate(roles)]
        serve_until_ended(engines, partial(_print, make_console()))
    except (ConfigError, FaultError) as error:
        raise UsageError(str(error)) from None
    except CannotListen as error:
        raise UsageError(f"--port: {error}; --port 0 takes free ones") from None
    return 0


def _print(console: Console, engines: Sequence[RunningEngine]) -> None:
    """Print the engines and suggested commands."""
    for engine in engines:
        console.print(f"ready {engine.config.role:<7} {engine.url}", soft_wrap=True)
    console.print("\nCtrl-C ends them. In other terminals:\n", soft_wrap=True)
    urls = {
        role: [engine.url for engine in engines if engine.config.role == role] for role in ROLES
    }
    for line in next_steps(urls, engines[0].config):
        console.print(f"  {line}", soft_wrap=True)


def next_steps(urls: Mapping[str, Sequence[str]], config: EngineConfig) -> tuple[str, ...]:
    """Shell commands for engines by role: check, serve, send a request, measure."""
    prefill, decode = urls["prefill"], urls["decode"]
    flags = [f"--{role} {','.join(found)}" for role, found in urls.items() if found]
    cache = " --prefix-cache events" if config.kv_events else ""
    if config.api_key is not None:
        flags.append(f"--engine-api-key {shlex.quote(config.api_key)}")
    if prefill and config.connector in ("mooncake", "moriio", "store"):
        flags.append(f"--disagg-connector-type {config.connector}")
    if prefill and config.connector == "mooncake":  # each engine is its own bootstrap server
        ports = ",".join(f'"{url}":{url.rpartition(":")[2]}' for url in prefill)
        flags.append(f"--mooncake-bootstrap-port '{{{ports}}}'")
    if prefill and config.connector == "moriio":
        ports = ",".join(f'"{url}":{url.rpartition(":")[2]}' for url in decode)
        flags += [f"--moriio-{kind}-port '{{{ports}}}'" for kind in ("handshake", "notify")]
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
