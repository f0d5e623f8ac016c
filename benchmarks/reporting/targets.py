"""The targets: a limit for a figure of a scenario.

A new target is a new row.
"""

from dataclasses import dataclass

# Fewer rounds have too much noise.
ROUNDS = 5
STALL_MS = 20.0


@dataclass(frozen=True)
class Target:
    """`router`'s figure, over that of `against` where there is one, is to be at most `limit`."""

    what: str
    scenario: str
    metric: str
    limit: float
    against: str | None = None
    router: str = "ours"
    unit: str = ""
    digits: int = 2


CHUNK, REQUEST = "cpu_us_per_chunk", "cpu_us_per_request"

TARGETS = (
    Target("CPU per chunk, 256 streams", "relay", CHUNK, 0.75, "vllm-router"),
    Target("CPU per chunk, 1024 streams", "relay-1024", CHUNK, 0.75, "vllm-router"),
    Target("CPU per chunk, 2048 streams", "relay-2048", CHUNK, 0.95, "vllm-router"),
    Target("CPU per chunk, 1024 streams", "relay-1024", CHUNK, 1.35, "nginx"),
    Target("CPU per unary request", "unary", REQUEST, 0.75, "vllm-router"),
    Target("CPU per 240 kB request, direct", "large-prompt", REQUEST, 0.75, "vllm-router"),
    Target(
        "CPU per 240 kB request, remote prefill", "large-prompt-pd", REQUEST, 0.9, "vllm-router"
    ),
    Target("CPU per request, two legs", "pd", REQUEST, 0.8, "vllm-router"),
    Target("TTFT p99, burst of 2048", "burst", "ttft_p99_ms", 0.25, "vllm-router"),
    Target("TTFT p99, burst of 2048", "burst", "ttft_p99_ms", 0.4, "smg-power-of-two"),
    Target(
        "TTFT p50 over a direct connection, 64 streams", "added-ttft", "added_ttft_p50_ms", 1.0,
        unit=" ms",
    ),
    Target(
        "memory per open stream", "idle-streams", "kib_per_stream", 16.0, unit=" KiB", digits=1
    ),
    Target(
        "streams, fullest less emptiest engine, p50, 4 workers", "relay-512", "spread_p50", 1.0,
        router="ours-4", digits=0,
    ),
    Target(
        "CPU per chunk, 2 workers against 1", "relay-1024", CHUNK, 1.05, "ours", router="ours-2"
    ),
)  # fmt: skip
# Where no stall of our event loop may be longer than STALL_MS.
STALL_SCENARIOS = (*dict.fromkeys(target.scenario for target in TARGETS), "slow-client")
