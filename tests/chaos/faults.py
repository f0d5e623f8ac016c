"""Faults. Each is set, and cleared after enough load."""

import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from random import Random
from typing import Any

from tests.chaos.cluster import Cluster, EngineProcess
from tests.chaos.load import Load
from tests.chaos.names import ELSEWHERE, HERE
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
    if not engine.is_started:  # as the other fault of a pair may have done
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
    """SIGSTOP: the kernel accepts connections, but there is no answer."""
    engine = _some(cluster, chance)
    engine.signal(signal.SIGSTOP)
    yield
    engine.signal(signal.SIGCONT)


@asynccontextmanager
async def _moved(cluster: Cluster, load: Load, chance: Random) -> AsyncIterator[None]:
    """An engine comes back at another address: its name leads there."""
    engine = chance.choice(cluster.named)
    cluster.broken.add(engine.url)
    await engine.move(ELSEWHERE)
    yield
    await engine.move(HERE)


@asynccontextmanager
async def _without_address(cluster: Cluster, load: Load, chance: Random) -> AsyncIterator[None]:
    """The name of an engine resolves to a dead host and its own, then to a dead host, then to none.
    Each new connection must resolve it."""
    engine = chance.choice(cluster.named)
    cluster.broken.add(engine.url)
    for addresses in ((ELSEWHERE, HERE), (ELSEWHERE,), ()):
        engine.resolves_to(*addresses)
        with suppress(OSError):
            await engine.drop()
        await load.more(60)
    yield
    engine.resolves_to(HERE)


@asynccontextmanager
async def _dropped(cluster: Cluster, load: Load, chance: Random) -> AsyncIterator[None]:
    """All connections of an engine are reset, again and again."""
    engine = _some(cluster, chance)
    for _ in range(5):
        with suppress(OSError):
            await engine.drop()
        await load.more(5)
    yield


_OK = "HTTP/1.1 200 OK\r\n"
_CHUNKED = f"{_OK}content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_WITHOUT_KV = '{"choices":[{"text":"a"}],"kv_transfer_params":null}'
_BUSY = '{"error":{"message":"busy","type":"a","param":null,"code":503}}'
_GARBAGE = "vllm:num_requests_running{a=\x00} nan\nvllm:num_requests_waiting -1e9\n\xff{{ 1 2\n"


def _by_wire(wire: str, only: str | None = None, rate: float = 0.3, **faults: Any) -> Fault:
    """An engine that writes these bytes in place of some of its answers."""
    return _by_faults(only, wire=wire, rate=rate, **faults)


FAULTS: dict[str, Fault] = {
    "SIGKILL of an engine": _killed,
    "restart on the same port": _restarted,
    "SIGSTOP and SIGCONT of an engine": _stopped,
    "an engine at another address": _moved,
    "a name without its address": _without_address,
    "connections refused": _by_faults(refuse=True, for_s=2.0),
    "reset on accept": _by_faults(reset="accept", rate=0.5),
    "reset before the head": _by_faults(reset="request", rate=0.5),
    "reset within the head": _by_faults(
        wire="HTTP/1.1 200 OK\r\ncontent-ty", reset="wire", rate=0.3
    ),
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
    "expired KV references": _by_faults("prefill", expire_references=10),
    "an engine eight times slower": _by_faults(slow=8.0),
    "a stalled engine": _by_faults(stall=True),
    "what is not HTTP": _by_wire("SSH-2.0-OpenSSH\r\n"),
    "half a head": _by_wire("HTTP/1.1 200 OK\r\ncontent-ty"),
    "a truncated chunk": _by_wire(f"{_CHUNKED}ff\r\ndata: {{"),
    "an over-long chunk": _by_wire(f"{_CHUNKED}3\r\ndata: {{}}\n\n\r\n0\r\n\r\n"),
    "a Content-Length too long": _by_wire(f'{_OK}content-length: 99\r\n\r\n{{"choices":[]}}'),
    "prefills with a Content-Length too short": _by_wire(
        f'{_OK}content-length: 5\r\n\r\n{{"choices":[]}}', "prefill"
    ),
    "an answer behind a Content-Length too short": _by_wire(
        f"HTTP/1.1 503 X\r\ncontent-length: {len(_BUSY)}\r\n\r\n{_BUSY}"
        f'{_OK}content-length: 14\r\n\r\n{{"choices":[]}}'
    ),
    "interim answers": _by_wire(
        "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 199 X\r\ncontent-length: 3\r\n\r\nabc"
    ),
    "gzip, not asked for": _by_wire(
        f"{_OK}content-encoding: gzip\r\ncontent-length: 3\r\n\r\n\x1f\x8b\x00", "decode"
    ),
    "redirects": _by_wire(
        "HTTP/1.1 307 X\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n"
    ),
    "null references": _by_wire(
        f"{_OK}content-length: {len(_WITHOUT_KV)}\r\n\r\n{_WITHOUT_KV}", "prefill"
    ),
    "a lying /health": _by_faults(status=503, rate=0.5, paths=("/health",)),
    "garbage in /metrics": _by_wire(
        f"{_OK}content-type: text/plain\r\n\r\n{_GARBAGE * 1000}", rate=1.0, paths=("/metrics",)
    ),
    "endless /metrics": _by_wire(
        f"{_OK}content-length: {1 << 40}\r\n\r\n" + "a 1\n" * (1 << 18),
        rate=1.0,
        paths=("/metrics",),
    ),
    "KV-cache events lost": _by_faults("decode", lose_kv_events=True),
    "KV-cache events late": _by_faults("decode", hold_kv_events=20),
    "KV-cache events in the wrong order": _by_faults(
        "decode", hold_kv_events=2, reverse_kv_events=True
    ),
    "KV-cache events forged": _by_faults("decode", forge_kv_events=True),
    **ROUTER_FAULTS,
}
