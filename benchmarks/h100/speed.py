"""Runs `smoke` and `large`: one engine answers, and its speed by batch size and prompt length.

These are the figures that `router/simulator/model` needs: seconds per step by sequences, seconds
per prefill by tokens, and tokens of KV cache.
"""

import asyncio
import re
from collections.abc import Mapping
from typing import Any

from benchmarks.h100.client import Client, ids, milliseconds, session
from benchmarks.h100.stage import Stage

__all__ = ["capacity", "large", "smoke"]

STEPS = 64
"""Tokens of an answer, of whose gaps a step is the median."""
PROMPT = 32
TRIES = 3
LABEL = re.compile(r'(\w+)="([^"]*)"')


def smoke(stage: Stage) -> Mapping[str, Any]:
    """One engine of the small model. Raises RuntimeError if its answers do not depend on prompts:
    equal tokens would then prove nothing."""
    (engine,) = stage.engines.need("one")
    return asyncio.run(_measured(stage, engine.url, stage.model, expect_different=True))


def large(stage: Stage) -> Mapping[str, Any]:
    """One engine of the large model, alone on the machine."""
    if stage.profile.large is None:
        return {}
    (engine,) = stage.engines.need("large")
    name = stage.profile.large.name
    return asyncio.run(_measured(stage, engine.url, name, expect_different=False))


async def _measured(
    stage: Stage, url: str, model: str, *, expect_different: bool
) -> Mapping[str, Any]:
    profile = stage.profile
    async with session() as opened:
        client = Client(opened, url, model)
        # With as many prompts as are compared, kernels of all their sizes are built.
        answers = [await client.tokens(ids(seed, 100), 8) for seed in range(profile.equal)]
        different = len({tuple(each) for each in answers})
        if expect_different and different < profile.equal:
            raise RuntimeError(f"{profile.equal} prompts have {different} different answers")
        steps = [(batch, await _step(client, batch)) for batch in profile.batches]
        prefills = [(length, await _prefill(client, length)) for length in profile.lengths]
        metrics = await client.metrics()
    (stage.folder / "metrics.txt").write_text(metrics, encoding="utf-8")
    stage.draw("step", "sequences", "ms per step", {model: steps})
    stage.draw("prefill", "prompt tokens", "ms to the first token", {model: prefills})
    return {
        "model": model,
        "flags": stage.engines.attempts[0],
        "different_answers": different,
        "step_ms_by_sequences": dict(steps),
        "prefill_ms_by_tokens": dict(prefills),
        "kv_tokens": capacity(metrics),
    }


async def _step(client: Client, batch: int) -> float:
    """Milliseconds of a step with so many sequences."""
    prompts = [ids(1000 * batch + number, PROMPT) for number in range(batch)]
    found = await client.streams(prompts, STEPS)
    if wrong := [each.error for each in found if each.error or len(each.times) < STEPS // 2]:
        raise RuntimeError(f"{len(wrong)} of {batch} streams: {wrong[0]}")
    middle = milliseconds([each.step for each in found], 0.5)
    assert middle is not None
    return middle


async def _prefill(client: Client, length: int) -> float:
    """Milliseconds to the first token of a prompt that no cache has, without other load."""
    found = [await client.stream(ids(7 * length + at, length), 1) for at in range(TRIES)]
    if wrong := [each.error for each in found if each.error]:
        raise RuntimeError(f"a prompt of {length} tokens: {wrong[0]}")
    middle = milliseconds([each.ttft for each in found], 0.5)
    assert middle is not None
    return middle


def capacity(metrics: str) -> int | None:
    """Tokens that the KV cache holds, from `vllm:cache_config_info`."""
    for line in metrics.splitlines():
        if line.startswith("vllm:cache_config_info{"):
            labels = dict(LABEL.findall(line))
            return int(labels["num_gpu_blocks"]) * int(labels["block_size"])
    return None
