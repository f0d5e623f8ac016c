"""The configuration of a simulated engine, checked as a whole."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from router.simulator.faults import NO_FAULTS, Faults
from router.simulator.model.batching import BatchModel
from router.simulator.model.blocks import blocks_for


class ConfigError(ValueError):
    """The configuration makes no sense; the message names the field."""


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """One engine. Times are in seconds; a time of 0 means: as fast as the machine goes."""

    model: str = "sim"
    loras: tuple[str, ...] = ()
    """Adapters: further model names, each with answers of its own."""
    role: Literal["prefill", "decode", "both"] = "both"
    """A label: which leg comes in is the router's doing, and the log of requests shows it."""
    connector: Literal["nixl", "lmcache", "none"] = "nixl"
    version: str = "0.32.0"
    engine_id: str | None = None
    """NIXL's id of this engine; None: a new one at each start, as in vLLM."""
    api_key: str | None = None

    host: str = "127.0.0.1"
    port: int = 0
    """0 lets the system choose."""
    keep_alive_s: float = 5.0
    """vLLM closes a connection that has been idle for so long."""
    sse_keep_alive_s: float | None = None
    """Send a comment in a stream that has been silent for so long (vLLM 0.29)."""

    max_model_len: int = 32_768
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8_192
    """Tokens per step; what exceeds it of a prompt is computed in the next step."""
    max_num_queued_reqs: int | None = None
    """Requests that may wait; one more is answered 503. None for no limit."""
    step_s: float = 0.0
    step_s_per_sequence: float = 0.0
    """What each sequence of the batch adds to a step."""
    prefill_tokens_per_second: float | None = None
    """None for no time at all."""

    data_parallel_size: int = 1
    """Ranks behind one API server: each has a batch and a KV cache of its own."""
    data_parallel_start_rank: int = 0
    """The first of them: an engine of several nodes has an API server on each."""

    block_size: int = 16
    total_blocks: int = 8_192
    prefix_caching: bool = True
    eos_one_in: int = 512
    """How rarely a sequence ends by itself; 0 for never. Engines that shall agree need the same."""
    prompt_tokens_details: bool = False
    """Report usage.prompt_tokens_details.cached_tokens."""

    kv_events: bool = False
    """Publish KV-cache events over ZeroMQ (vLLM: --kv-events-config)."""
    kv_events_port: int = 0
    """Where they are published; replays are on the next port. 0 lets the system choose both."""

    kv_lease_s: float = 30.0
    """How long KV blocks are kept for a decode engine (vLLM: kv_lease_duration)."""
    kv_params_on_stop: bool = False
    """Give KV parameters also when the sequence ended by itself. vLLM does since 0.22.1; before,
    and in other connectors, only a finish for length does."""
    kv_params_extra: Mapping[str, Any] = field(default_factory=dict)
    """Put into the KV parameters: keys that a router cannot know, integers above 2**53."""
    kv_load_failure_policy: Literal["fail", "recompute"] = "fail"
    kv_handshake_timeout_s: float = 5.0
    kv_tokens_per_second: float | None = None
    """Speed of a KV transfer; None for no time at all."""
    stop_after_death_s: float | None = None
    """A dead engine's server stops after so long; None leaves it answering 500 and 503."""

    receivers: Mapping[str, str] = field(default_factory=dict)
    """LMCache prefill: "host:init_port" of a decoder, and the URL of its simulator."""
    notify: str | None = None
    """LMCache prefill: host:port of the router's ZeroMQ socket; None for no notification."""
    notify_delay_s: float = 0.0

    request_log: int = 1_000
    """Requests that are remembered for /sim/requests; 0 for none."""
    seed: int = 0
    """For faults at a rate."""
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
        for name in ("prefill_tokens_per_second", "kv_tokens_per_second"):
            if (rate := getattr(self, name)) is not None and rate <= 0:
                raise ConfigError(f"{name}: expected more than 0, got {rate}")

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
        """All names under which requests are answered."""
        return (self.model, *self.loras)
