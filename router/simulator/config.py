"""The configuration of a simulated engine, validated as a whole."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from router.simulator.faults import NO_FAULTS, Faults
from router.simulator.model.batching import BatchModel
from router.simulator.model.blocks import blocks_for


class ConfigError(ValueError):
    """The configuration is invalid; the message names the field."""


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """One engine. Times are in seconds; a time of 0 means as fast as possible."""

    model: str = "sim"
    loras: list[str] = field(default_factory=list)
    """Names of adapters; more can be loaded at run time."""
    """Adapters: further model names, each with its own answers."""
    role: Literal["prefill", "decode", "encode", "both"] = "both"
    """An encode engine generates nothing. Otherwise only a label: the router decides which leg an
    engine serves, as the log of requests shows. With Mooncake and MoRIIO it is the engine's
    kv_role, and parameters of the other one end the engine."""
    connector: Literal["nixl", "nixl-push", "mooncake", "moriio", "lmcache", "store", "none"] = (
        "nixl"
    )
    moriio_reads: bool = False
    """MoRIIO in READ mode, of which only the fault is simulated: a decode engine takes each prompt
    for loaded, whether or not it has parameters."""
    version: str = "0.32.0"
    engine_id: str | None = None
    """The connector's id of this engine; None: a new one at each start, as in vLLM."""
    api_key: str | None = None

    host: str = "127.0.0.1"
    port: int = 0
    """0 lets the system choose."""
    keep_alive_s: float = 5.0
    """Idle connections are closed after so many seconds, as by vLLM."""
    sse_keep_alive_s: float | None = None
    """Send a comment in a stream that has been silent for so many seconds (vLLM 0.29)."""

    max_model_len: int = 32_768
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8_192
    """Tokens per step. The rest of a longer prompt is computed in the next steps."""
    max_num_queued_reqs: int | None = None
    """Most queued requests; further ones get 503. None for no limit."""
    step_s: float = 0.0
    step_s_per_sequence: float = 0.0
    """Seconds that each sequence of the batch adds to a step."""
    prefill_tokens_per_second: float | None = None
    """None: prompts take no time."""

    data_parallel_size: int = 1
    """Data-parallel ranks behind one API server; each has its own batch and KV cache."""
    data_parallel_start_rank: int = 0
    """The first of these ranks: an engine that spans several nodes has an API server on each."""

    block_size: int = 16
    total_blocks: int = 8_192
    prefix_caching: bool = True
    eos_one_in: int = 512
    """One in so many tokens ends a sequence; 0: none does. Engines that are to give the same
    answers need the same value."""
    prompt_tokens_details: bool = False
    """Report usage.prompt_tokens_details.cached_tokens."""

    kv_events: bool = False
    """Publish KV-cache events over ZeroMQ (vLLM: --kv-events-config)."""
    kv_events_port: int = 0
    """The port for events; replays are on the next one. 0 lets the system choose both."""

    kv_lease_s: float = 30.0
    """Seconds for which KV blocks are kept for a decode engine (vLLM: kv_lease_duration; Mooncake:
    VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT, by default 480, which is also what a decode engine waits
    for blocks that nobody keeps)."""
    kv_params_on_stop: bool = False
    """Return KV parameters even if a stop condition ended the sequence. vLLM does so since 0.22.1;
    before that, and in other connectors, only sequences that end for length have them."""
    kv_params_extra: Mapping[str, Any] = field(default_factory=dict)
    """Added to the KV parameters: keys that a router cannot know, integers above 2**53."""
    kv_returns: bool = False
    """NIXL's bidirectional_kv_xfer: a decode engine keeps what it loaded for a prefill engine."""
    kv_load_failure_policy: Literal["fail", "recompute"] = "fail"
    kv_handshake_timeout_s: float = 5.0
    kv_tokens_per_second: float | None = None
    """Speed of a KV transfer; None: it takes no time."""
    stop_after_death_s: float | None = None
    """Seconds after which a dead engine's server stops; None: it keeps answering 500 and 503."""

    receivers: Mapping[str, str] = field(default_factory=dict)
    """LMCache prefill: the simulator's URL for each "host:init_port" of a decoder."""
    notify: str | None = None
    """LMCache prefill: host:port of the router's ZeroMQ socket; None: no notifications."""
    notify_delay_s: float = 0.0

    encoder_cache: str | None = None
    """The folder in which encode engines put embeddings, and others find them; None: there is
    none."""
    encode_s: float = 0.0
    """Seconds in which an image, recording or video is encoded."""

    store: str | None = None
    """Store: the folder that all engines share."""
    store_delay_s: float = 0.0
    """Store: seconds from a prompt's answer until other engines find its KV cache; 0: before the
    answer."""

    request_log: int = 1_000
    """Requests that are kept for /sim/requests; 0: none."""
    seed: int = 0
    """Seed for faults with a rate."""
    faults: Faults = NO_FAULTS

    def __post_init__(self) -> None:
        for name in (
            *("max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size"),
            "data_parallel_size",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if self.total_blocks < blocks_for(self.max_model_len, self.block_size):
            raise ConfigError(
                f"total_blocks: {self.total_blocks} blocks of {self.block_size} tokens cannot hold"
                f" max_model_len={self.max_model_len}"
            )
        if (self.connector == "store") != (self.store is not None):
            raise ConfigError("store: needed with connector=store, and only then")
        for name in ("prefill_tokens_per_second", "kv_tokens_per_second"):
            if (rate := getattr(self, name)) is not None and rate <= 0:
                raise ConfigError(f"{name}: expected more than 0, got {rate}")

    def numbered(self, place: int, **changes: Any) -> "EngineConfig":
        """The configuration of the engine with this number of several on consecutive ports."""
        port, events = self.port, self.kv_events_port
        return replace(
            self,
            port=port + place if port else 0,
            kv_events_port=events + 2 * place * self.data_parallel_size if events else 0,
            loras=[*self.loras],
            **changes,
        )

    @property
    def batch(self) -> BatchModel:
        """Its limits and speed."""
        return BatchModel(
            self.max_num_seqs,
            self.step_s,
            self.step_s_per_sequence,
            self.prefill_tokens_per_second or math.inf,
            self.max_num_batched_tokens,
            math.inf if self.max_num_queued_reqs is None else self.max_num_queued_reqs,
        )

    @property
    def models(self) -> tuple[str, ...]:
        """All model names that it answers to."""
        return (self.model, *self.loras)
