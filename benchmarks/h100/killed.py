"""Run `killed`: an engine is killed while streams are open, without and with continuation."""

import asyncio
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.h100.client import Client, Stream, ids, milliseconds, session
from benchmarks.h100.engines import Engine
from benchmarks.h100.stage import Stage

__all__ = ["killed", "summary"]

PROMPT = 200
POLICY = "shortest_expected_delay"


def killed(stage: Stage) -> Mapping[str, Any]:
    """One engine for each setting; both are missing afterwards."""
    engines = stage.engines.need("pool")
    found = {}
    for setting in ("off", "on"):
        flags = ("--stream-continuation", setting)
        with stage.router(POLICY, engines, setting, *flags) as url:
            found[setting] = asyncio.run(_killed(stage, url, engines.pop(), setting))
    return found


async def _killed(stage: Stage, url: str, victim: Engine, setting: str) -> Mapping[str, Any]:
    profile = stage.profile
    async with session() as opened:
        client = Client(opened, url, stage.model)
        streams = [Stream() for _ in range(profile.streams)]
        begun = [asyncio.Event() for _ in streams]
        tasks = [
            asyncio.create_task(client.stream(ids(at, PROMPT), profile.stream_tokens, *both))
            for at, both in enumerate(zip(streams, begun, strict=True))
        ]
        for event in begun:
            await event.wait()
        still_open = sum(each.engine == victim.url and each.finish is None for each in streams)
        victim.signal(signal.SIGKILL)
        await asyncio.gather(*tasks)
        (stage.folder / f"metrics-{setting}.txt").write_text(await client.metrics())
    found = summary(streams, victim.url, profile.stream_tokens)
    return {"killed": victim.url, "its_open_streams": still_open, **found}


def summary(streams: Sequence[Stream], victim: str, tokens: int) -> Mapping[str, Any]:
    """What became of the streams on the killed engine, and of the others. `whole` streams ended
    without an error, and with all their tokens where every event has one."""

    def of(chosen: Sequence[Stream]) -> Mapping[str, Any]:
        whole = [each for each in chosen if each.error is None and each.finish == "length"]
        return {
            "streams": len(chosen),
            "whole": len(whole),
            "events_missing": sum(tokens - len(each.times) for each in whole),
            "longest_gap_p50_ms": milliseconds([max(each.gaps, default=0) for each in whole], 0.5),
            "longest_gap_ms": milliseconds([max(each.gaps, default=0) for each in whole], 1.0),
            "errors": sorted({each.error for each in chosen if each.error}),
        }

    return {
        "its_streams": of([each for each in streams if each.engine == victim]),
        "others": of([each for each in streams if each.engine != victim]),
    }
