"""What goes wrong. Each fault is put in force, and mended when the load has had enough of it."""

import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from random import Random
from typing import Any

from tests.chaos.cluster import Cluster, EngineProcess
from tests.chaos.load import Load
from tests.chaos.router_faults import ROUTER_FAULTS

__all__ = ["FAULTS", "Fault"]

Fault = Callable[[Cluster, Load, Random], AbstractAsyncContextManager[None]]


def _some(cluster: Cluster, chance: Random) -> EngineProcess:
    engine = chance.choice(cluster.engines)
    cluster.broken.add(engine.url)
    return engine


def _by_faults(only: str | None = None, **faults: Any) -> Fault:
    """What the simulated engine itself does wrong: on a decode engine, or on all of a role."""

    @asynccontextmanager
    async def fault(cluster: Cluster, _: Load, chance: Random) -> AsyncIterator[None]:
        engines = {"prefill": cluster.prefills, "decode": cluster.decodes}.get(
            only or "", [chance.choice(cluster.decodes)]
        )
        cluster.broken.update(engine.url for engine in engines)
        for engine in engines:
            with suppress(OSError):  # the other fault of a pair has stopped it
                await engine.set_faults(**faults)
        yield
        for engine in engines:
            await engine.mend()

    return fault


@asynccontextmanager
async def _killed(cluster: Cluster, _: Load, chance: Random) -> AsyncIterator[None]:
    """SIGKILL of an engine; another one starts on the same port."""
    engine = _some(cluster, chance)
    await engine.kill()
    yield
    await engine.start()


@asynccontextmanager
async def _restarted(cluster: Cluster, load: Load, chance: Random) -> AsyncIterator[None]:
    """An engine is gone so shortly that no probe sees it."""
    engine = _some(cluster, chance)
    await engine.kill()
    await engine.start()
    yield


@asynccontextmanager
async def _stopped(cluster: Cluster, _: Load, chance: Random) -> AsyncIterator[None]:
    """SIGSTOP: the kernel accepts connections, and nobody answers."""
    engine = _some(cluster, chance)
    engine.signal(signal.SIGSTOP)
    yield
    engine.signal(signal.SIGCONT)


@asynccontextmanager
async def _dropped(cluster: Cluster, load: Load, chance: Random) -> AsyncIterator[None]:
    """All connections of an engine are reset, again and again."""
    engine = _some(cluster, chance)
    for _ in range(5):
        with suppress(OSError):
            await engine.drop()
        await load.more(5)
    yield


FAULTS: dict[str, Fault] = {
    "SIGKILL of an engine": _killed,
    "restart on the same port": _restarted,
    "SIGSTOP and SIGCONT of an engine": _stopped,
    "connections refused": _by_faults(refuse=True, for_s=2.0),
    "reset on accept": _by_faults(reset="accept", rate=0.5),
    "reset before the head": _by_faults(reset="request", rate=0.5),
    "reset within a chunk": _by_faults("decode", cut_after_tokens=3, rate=0.3),
    "connections dropped": _dropped,
    "idle connections closed": _by_faults("decode", close_idle=True),
    "half-open": _by_faults(hang=True, rate=0.5),
    "silence within a stream": _by_faults(freeze_after_tokens=3, rate=0.3),
    "error events": _by_faults("decode", error_after_tokens=2, rate=0.3),
    "slow head": _by_faults("decode", delay_s=0.2, rate=0.5),
    "bursts of 500": _by_faults(status=500, rate=0.7),
    "bursts of 503": _by_faults("decode", status=503, rate=0.5),
    "prefills answer 500": _by_faults("prefill", status=500),
    "prefills never answer": _by_faults("prefill", hang=True, rate=0.3),
    "prefills refused": _by_faults("prefill", refuse=True, for_s=2.0),
    "failed KV loads": _by_faults("decode", fail_kv_loads=5),
    "an engine eight times slower": _by_faults(slow=8.0),
    "a stalled engine": _by_faults(stall=True),
    "KV-cache events lost": _by_faults("decode", lose_kv_events=True),
    "KV-cache events forged": _by_faults("decode", forge_kv_events=True),
    **ROUTER_FAULTS,
}
