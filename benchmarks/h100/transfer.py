"""Run `transfer`: prefill and decode engines over NIXL. Whether tokens are equal, and from which
prompt length on a remote prefill gives the earlier first token, and smaller gaps to others."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.h100.client import Client, Stream, ids, milliseconds, session
from benchmarks.h100.engines import Engine
from benchmarks.h100.stage import Stage

__all__ = ["common", "crossing", "transfer"]

POLICY = "shortest_expected_delay"
MODES = {"direct": "1000000000", "remote": "64"}
"""--routing-threshold. The background's prompts of 32 tokens are direct in both."""
BACKGROUND = 4
"""Streams per decode engine, whose gaps prompts make longer."""
BACKGROUND_TOKENS = 512
PROBES, ANSWER = 7, 4
"""Prompts of each length, and tokens of their answers."""
COMPARED = 16
"""Tokens of the answers that are compared. With random weights in bfloat16 the two likeliest tokens
are often a rounding apart, and answers part there; a wrong KV cache differs in the first token."""


def transfer(stage: Stage) -> Mapping[str, Any]:
    """Each split of the profile, in both modes."""
    engines = stage.engines.need("transfer")
    prefill = [each for each in engines if each.spec.role == "kv_producer"]
    decode = [each for each in engines if each.spec.role == "kv_consumer"]
    found = {}
    for many_prefill, many_decode in stage.profile.splits:
        name = f"{many_prefill}P+{many_decode}D"
        found[name] = _split(stage, name, prefill[:many_prefill], decode[:many_decode])
    return found


def _split(
    stage: Stage, name: str, prefill: Sequence[Engine], decode: Sequence[Engine]
) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    for mode, threshold in MODES.items():
        urls = ",".join(each.url for each in prefill)
        flags = ("--prefill", urls, "--routing-threshold", threshold)
        with stage.router(POLICY, decode, f"{name}-{mode}", *flags) as url:
            found[mode] = asyncio.run(_measured(stage, f"{name}-{mode}", url, decode))
    direct, remote = found["direct"], found["remote"]
    for figure in ("ttft_p50_ms", "others_gap_p99_ms", "others_gap_max_ms"):
        series = {
            mode: [(row["tokens"], row[figure]) for row in found[mode]["probes"]] for mode in MODES
        }
        stage.draw(f"{name}-{figure}", "prompt tokens", figure, series)
    found["threshold"] = {
        figure: crossing(direct["probes"], remote["probes"], figure)
        for figure in ("ttft_p50_ms", "others_gap_p99_ms")
    }
    return found


async def _measured(stage: Stage, name: str, url: str, decode: Sequence[Engine]) -> dict[str, Any]:
    async with session() as opened:
        client = Client(opened, url, stage.model)
        alone = Client(opened, decode[0].url, stage.model)
        same = []
        for seed in range(stage.profile.equal):
            prompt = ids(seed, 300 + 10 * seed)
            wanted = await alone.tokens(prompt, COMPARED)
            same.append(common(wanted, await client.tokens(prompt, COMPARED)))
        async with _background(client, BACKGROUND * len(decode)) as others:
            lengths = stage.profile.lengths
            probes = [await _probed(client, length, others) for length in lengths]
        texts = [await Client(opened, each, "").metrics() for each in (url, decode[0].url)]
    (stage.folder / f"metrics-{name}.txt").write_text("\n".join(texts), encoding="utf-8")
    whole = sum(each == COMPARED for each in same)
    return {"answers_equal": whole, "first_tokens_equal": same, "probes": probes}


@asynccontextmanager
async def _background(client: Client, count: int) -> AsyncIterator[list[Stream]]:
    """So many streams, one after the other; the list grows with them."""
    seen: list[Stream] = []
    seeds = itertools.count(1)

    async def endless() -> None:
        while True:
            seen.append(Stream())
            await client.stream(ids(next(seeds), 32), BACKGROUND_TOKENS, seen[-1])

    tasks = [asyncio.create_task(endless()) for _ in range(count)]
    try:
        yield seen
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _probed(client: Client, length: int, others: Sequence[Stream]) -> dict[str, Any]:
    """Prompts of one length, one at a time. Raises RuntimeError."""
    begun = time.monotonic()
    probes = [await client.stream(ids(length + at, length), ANSWER) for at in range(PROBES)]
    if wrong := [each.error for each in probes if each.error]:
        raise RuntimeError(f"a prompt of {length} tokens: {wrong[0]}")
    gaps = [
        after - before
        for each in others
        for before, after in itertools.pairwise(each.times)
        if after > begun
    ]
    return {
        "tokens": length,
        "ttft_p50_ms": milliseconds([each.ttft for each in probes], 0.5),
        "ttft_max_ms": milliseconds([each.ttft for each in probes], 1.0),
        "others_gap_p50_ms": milliseconds(gaps, 0.5),
        "others_gap_p99_ms": milliseconds(gaps, 0.99),
        "others_gap_max_ms": milliseconds(gaps, 1.0),
    }


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two answers begin with together."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def crossing(
    direct: Sequence[Mapping[str, Any]], remote: Sequence[Mapping[str, Any]], figure: str
) -> int | None:
    """The least prompt length from which on the remote figure is never above the direct one."""
    least = None
    for one, other in zip(reversed(direct), reversed(remote), strict=True):
        if other[figure] > one[figure]:
            break
        least = one["tokens"]
    return least
