"""The table of routers: how each is started in front of the same engines.

A new peer is one more row. It refuses to know scenarios and figures. Every router gets the policy
that comes closest to least-loaded, and otherwise its defaults; a peer's log is quiet, ours is not.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.peers import VLLM_ROUTER, Peer
from benchmarks.processes import free_port


@dataclass(frozen=True)
class Fleet:
    """The engines' addresses by role."""

    decode: Sequence[str]
    prefill: Sequence[str] = ()


@dataclass(frozen=True)
class Router:
    """How to start one router, and where it says that it is ready."""

    name: str
    ready_path: str
    # None: no router, the client speaks to the decode engines itself.
    command: Callable[[Fleet, int], list[str]] | None
    peer: Peer | None = None


def _each(flag: str, urls: Sequence[str]) -> Iterator[str]:
    for url in urls:
        yield flag
        yield url


def _ours(fleet: Fleet, port: int) -> list[str]:
    return [
        *(sys.executable, "-m", "router.cli", "serve"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--load-balancing-strategy", "least_loaded"),
        *_each("--decode", fleet.decode),
        *_each("--prefill", fleet.prefill),
    ]


def _vllm_router(fleet: Fleet, port: int) -> list[str]:
    if fleet.prefill:
        engines = ["--vllm-pd-disaggregation", "--kv-connector", "nixl"]
        engines += [*_each("--prefill", fleet.prefill), *_each("--decode", fleet.decode)]
    else:
        engines = ["--worker-urls", *fleet.decode]
    return [
        *(str(VLLM_ROUTER.executable), "--host", "127.0.0.1", "--port", str(port)),
        # Its least-loaded: the less loaded of two random workers. Its default, cache_aware, asks
        # every engine to render each prompt, which would measure the engines.
        *("--policy", "power_of_two"),
        # 0.1.17 knows "error" but takes "warning" for "info": two lines per request.
        *("--log-level", "error"),
        *("--prometheus-port", str(free_port())),
        *engines,
    ]


ROUTERS = {
    router.name: router
    for router in (
        Router("direct", "/health", None),
        Router("ours", "/ready", _ours),
        Router("vllm-router", "/readiness", _vllm_router, VLLM_ROUTER),
    )
}
