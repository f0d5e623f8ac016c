"""The plan for the GPU fits into its memory and its time."""

import math

import pytest

from benchmarks.h100.profiles import H100, PROFILES, RUNS, Profile, Shape

GIB = 1 << 30
MEMORY = 78 * GIB
CONTEXT = 1.5 * GIB
"""Of a process on the GPU: its CUDA context, activations of 8192 tokens, graphs."""


def weights(shape: Shape) -> int:
    """Bytes of bfloat16 weights; norms and rotary embeddings left out."""
    attention = shape.hidden * shape.head_dim * 2 * (shape.heads + shape.kv_heads)
    layer = attention + 3 * shape.hidden * shape.intermediate
    embeddings = shape.vocabulary * shape.hidden * (1 if shape.tied else 2)
    return 2 * (shape.layers * layer + embeddings)


def kv_token(shape: Shape) -> int:
    """Bytes of KV cache for a token."""
    return 2 * 2 * shape.kv_heads * shape.head_dim * shape.layers


def cache(flags: tuple[str, ...]) -> int:
    return int(flags[flags.index("--kv-cache-memory-bytes") + 1])


def test_shapes_are_those_of_the_published_models() -> None:
    assert H100.large is not None
    assert weights(H100.small) / 2 == pytest.approx(0.6e9, rel=0.01)
    assert weights(H100.large) / 2 == pytest.approx(8.19e9, rel=0.01)


def test_all_engines_of_a_run_fit_into_memory() -> None:
    one = weights(H100.small) + cache(H100.flags) + CONTEXT
    engines = max(H100.pool, *(sum(split) for split in H100.splits))
    assert engines * one < MEMORY
    assert H100.large is not None
    assert weights(H100.large) + cache(H100.large_flags) + CONTEXT < MEMORY


def test_streams_find_room_in_the_caches() -> None:
    tokens = cache(H100.flags) // kv_token(H100.small)
    for load in H100.loads:
        each = math.ceil(load.streams / H100.pool)
        assert each * (H100.prompt_tokens + H100.answer_tokens) < tokens


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda each: str(each.name))
def test_every_run_has_a_limit(profile: Profile) -> None:
    assert set(profile.limits) == set(RUNS)


def test_a_run_may_take_its_limit_and_leave_time_for_a_command_of_ten_minutes() -> None:
    assert H100.total < 600
    assert max(H100.limits.values()) < H100.total / 2
