"""The command-line options of a simulated engine, and the configuration made from them."""

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from router.simulator.config import EngineConfig
from router.simulator.faults import Faults

__all__ = ["add_options", "config_of"]


def add_options(
    parser: "argparse.ArgumentParser | argparse._ArgumentGroup", **defaults: float
) -> None:
    """Add an option for each field of EngineConfig except role and port.

    Options that are not given, and have no default in `defaults`, are not in the namespace.
    """
    add = parser.add_argument
    for flag, kind, metavar, text in _VALUES:
        other = defaults.get(flag.removeprefix("--").replace("-", "_"))
        default = _default(flag) if other is None else f"{other:g}"
        shown = f"{text} (default {default})" if default else text
        value = argparse.SUPPRESS if other is None else other
        add(flag, type=kind, metavar=metavar, default=value, help=shown)
    add(
        "--connector",
        choices=("nixl", "nixl-push", "mooncake", "moriio", "lmcache", "store", "none"),
        default=argparse.SUPPRESS,
        help=_CONN,
    )
    add(
        "--kv-load-failure-policy",
        choices=("fail", "recompute"),
        default=argparse.SUPPRESS,
        help="what happens to a request whose KV transfer fails (default fail)",
    )
    for flag, text in _SWITCHES:
        add(flag, action="store_true", default=argparse.SUPPRESS, help=text)
    add(
        "--no-prefix-caching",
        dest="prefix_caching",
        action="store_false",
        default=argparse.SUPPRESS,
        help="compute every prompt from its beginning",
    )
    add(
        "--lora",
        action="append",
        metavar="NAME",
        default=argparse.SUPPRESS,
        help="a further model name; may be repeated",
    )
    add(
        "--receiver",
        action="append",
        type=_pair,
        metavar="HOST:INIT_PORT=URL",
        default=argparse.SUPPRESS,
        help="LMCache: where the simulator of that decoder is; may be repeated",
    )


def config_of(options: Mapping[str, Any]) -> EngineConfig:
    """The configuration from these options. Raises ConfigError or FaultError."""
    values = dict(options)
    for name in ("step", "step_per_sequence"):
        if (milliseconds := values.pop(f"{name}_ms", None)) is not None:
            values[name.replace("step", "step_s", 1)] = milliseconds / 1000
    values["loras"] = list(values.pop("lora", ()))
    values["receivers"] = dict(values.pop("receiver", ()))
    if "faults" in values:
        values["faults"] = Faults.parse(values["faults"])
    return EngineConfig(**values)


def _default(flag: str) -> str:
    """An option's default as a user would write it; empty if the option is off."""
    name = flag.removeprefix("--").replace("-", "_")
    unit = 1000.0 if name.endswith("_ms") else 1.0
    name = name.removesuffix("_ms").replace("step", "step_s", 1) if unit > 1 else name
    value = next((each.default for each in fields(EngineConfig) if each.name == name), None)
    if isinstance(value, int | float):
        return f"{value * unit:.10g}"
    return value if isinstance(value, str) else ""


def _pair(text: str) -> tuple[str, str]:
    name, found, url = text.partition("=")
    if not found:
        raise argparse.ArgumentTypeError(f"expected HOST:INIT_PORT=URL, got {text}")
    return name, url


_CONN = "what moves KV caches (default nixl)"

_SWITCHES = (
    ("--kv-params-on-stop", "give KV parameters also when a sequence ended by itself"),
    ("--kv-events", "publish KV-cache events over ZeroMQ; GET /kv_event_sources names the sockets"),
    ("--prompt-tokens-details", "report cached tokens in usage.prompt_tokens_details"),
)

_VALUES: tuple[tuple[str, Callable[[str], Any], str, str], ...] = (
    ("--host", str, "HOST", "address to listen on"),
    ("--model", str, "NAME", "the model's name"),
    ("--version", str, "TEXT", "the vLLM version that /version reports"),
    ("--engine-id", str, "TEXT", "as NIXL knows this engine; else a new one at each start"),
    ("--api-key", str, "KEY", "required on /v1; else none is"),
    ("--keep-alive-s", float, "SECONDS", "idle connections are closed after so long"),
    ("--sse-keep-alive-s", float, "SECONDS", "a comment in streams silent for so long; else none"),
    ("--max-model-len", int, "TOKENS", "of prompt and answer together"),
    ("--max-num-seqs", int, "N", "sequences in a batch"),
    ("--max-num-batched-tokens", int, "TOKENS", "in a step"),
    ("--max-num-queued-reqs", int, "N", "requests that may wait; more are answered 503; else any"),
    ("--step-ms", float, "MS", "time of a step; 0: as fast as the machine goes"),
    ("--step-per-sequence-ms", float, "MS", "what each sequence of the batch adds to it"),
    ("--prefill-tokens-per-second", float, "N", "speed of prefill; else it takes no time"),
    (
        "--data-parallel-size",
        int,
        "N",
        "ranks behind one API server, each with a batch and a cache",
    ),
    ("--data-parallel-start-rank", int, "N", "the first of them"),
    ("--block-size", int, "TOKENS", "of a KV block"),
    ("--total-blocks", int, "N", "KV blocks"),
    ("--eos-one-in", int, "N", "how rarely a sequence ends by itself; 0: never"),
    ("--kv-events-port", int, "PORT", "of KV-cache events, replays on the next; 0: free ones"),
    ("--kv-lease-s", float, "SECONDS", "how long KV blocks are kept for a decode engine"),
    ("--kv-tokens-per-second", float, "N", "speed of KV transfers; else they take no time"),
    ("--kv-params-extra", json.loads, "JSON", "object put into the KV parameters"),
    ("--stop-after-death-s", float, "SECONDS", "a dead engine's server stops then; else never"),
    ("--notify", str, "HOST:PORT", "LMCache: the router's ZeroMQ socket"),
    ("--notify-delay-s", float, "SECONDS", "LMCache: wait before notifying"),
    ("--encoder-cache", str, "FOLDER", "where encode engines put embeddings; else none is shared"),
    ("--encode-s", float, "SECONDS", "to encode an image, recording or video"),
    ("--store", str, "FOLDER", "store: the folder that all engines share"),
    ("--store-delay-s", float, "SECONDS", "store: wait before others find a prompt"),
    ("--request-log", int, "N", "requests remembered for /sim/requests"),
    ("--seed", int, "N", "for faults at a rate"),
    ("--faults", json.loads, "JSON", "object, as for POST /sim/faults"),
)
