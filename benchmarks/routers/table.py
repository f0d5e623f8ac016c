"""The table of routers: how each is started in front of the same engines.

A new peer is one more row. Every router gets the policy
that its row names, by default the one that comes closest to least-loaded, and otherwise its
defaults; a peer's log is quiet, ours is not.
"""

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.routers import envoy, nginx
from benchmarks.routers.fleet import Fleet
from benchmarks.routers.peers import ENVOY, NGINX, SGLANG_ROUTER, SMG, VLLM_ROUTER, Packaged, Peer
from benchmarks.system.ports import free_port

# From the engines, the port to listen on and a directory for its files to the command line.
Command = Callable[[Fleet, int, Path], list[str]]


@dataclass(frozen=True)
class Router:
    """How to start one router, and its readiness URL."""

    name: str
    ready_path: str
    # None: no router, the client speaks to the decode engines itself.
    command: Command | None
    peer: Peer | Packaged | None = None
    # Whether it knows prefill and decode legs of vLLM (NIXL).
    two_legs: bool = True


def _each(flag: str, urls: Sequence[str]) -> Iterator[str]:
    for url in urls:
        yield flag
        yield url


def _ours(
    policy: str, fleet: Fleet, port: int, _place: Path, more: Sequence[str] = ()
) -> list[str]:
    return [
        *(sys.executable, "-m", "router", "serve"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--load-balancing-strategy", policy),
        *_each("--decode", fleet.decode),
        *_each("--prefill", fleet.prefill),
        # All routers prefill every prompt remotely.
        *(("--routing-threshold", "0") if fleet.prefill else ()),
        *more,
    ]


def _sed(*more: str) -> Command:
    return functools.partial(_ours, "shortest_expected_delay", more=more)


def _workers(count: int) -> Router:
    """Ours in so many processes; its process tree is measured as a whole."""
    more = ("--workers", str(count))
    command = functools.partial(_ours, "least_loaded", more=more)
    return Router(f"ours-{count}", "/ready", command)


def _vllm_router(policy: str, fleet: Fleet, port: int, _place: Path) -> list[str]:
    if fleet.prefill:
        engines = ["--vllm-pd-disaggregation", "--kv-connector", "nixl"]
        engines += [*_each("--prefill", fleet.prefill), *_each("--decode", fleet.decode)]
    else:
        engines = ["--worker-urls", *fleet.decode]
    return [
        *(str(VLLM_ROUTER.executable), "--host", "127.0.0.1", "--port", str(port)),
        *("--policy", policy),
        # 0.1.17 knows "error" but takes "warning" for "info": two lines per request.
        *("--log-level", "error"),
        *("--prometheus-port", str(free_port())),
        *engines,
    ]


def _smg(policy: str, fleet: Fleet, port: int, _place: Path) -> list[str]:
    return [
        *(str(SMG.executable), "launch", "--host", "127.0.0.1", "--port", str(port)),
        *("--policy", policy, "--backend", "vllm"),
        # Else it looks for the model's tokenizer on the network.
        "--disable-tokenizer-autoload",
        # Its default, 4096 on four cores and fewer, answers 429 to the rest of 10 000 idle streams.
        *("--max-concurrent-requests", "0"),
        *("--log-level", "error"),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())),
        *("--worker-urls", *fleet.decode),
    ]


def _sglang_router(policy: str, fleet: Fleet, port: int, _place: Path) -> list[str]:
    return [
        *(str(SGLANG_ROUTER.executable), "launch", "--host", "127.0.0.1", "--port", str(port)),
        *("--policy", policy, "--max-concurrent-requests", "-1"),
        *("--log-level", "error"),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())),
        *("--worker-urls", *fleet.decode),
    ]


def _with(command: Callable[[str, Fleet, int, Path], list[str]], policy: str) -> Command:
    return functools.partial(command, policy)


ROUTERS = {
    router.name: router
    for router in (
        Router("direct", "/health", None),
        Router("ours", "/ready", _with(_ours, "least_loaded")),
        _workers(2),
        _workers(4),
        Router("ours-round-robin", "/ready", _with(_ours, "round_robin")),
        Router("ours-sed", "/ready", _sed()),
        Router("ours-sed-off", "/ready", _sed("--prefix-cache", "off")),
        Router("ours-sed-no-continuation", "/ready", _sed("--stream-continuation", "off")),
        Router("ours-sed-events", "/ready", _sed("--prefix-cache", "events")),
        Router("nginx", "/health", nginx.command, NGINX, two_legs=False),
        Router(
            "nginx-2",
            "/health",
            functools.partial(nginx.command, workers=2),
            NGINX,
            two_legs=False,
        ),
        Router("envoy", "/health", envoy.command, ENVOY, two_legs=False),
        # Its least-loaded: the less loaded of two random workers. Its default, cache_aware, asks
        # every engine to render each prompt, which would measure the engines: it is in
        # `benchmarks.prefix` only.
        Router("vllm-router", "/readiness", _with(_vllm_router, "power_of_two"), VLLM_ROUTER),
        Router(
            "vllm-router-round-robin", "/readiness", _with(_vllm_router, "round_robin"), VLLM_ROUTER
        ),
        Router(
            "vllm-router-cache-aware", "/readiness", _with(_vllm_router, "cache_aware"), VLLM_ROUTER
        ),
        Router("smg-power-of-two", "/readiness", _with(_smg, "power_of_two"), SMG, two_legs=False),
        Router(
            "sglang-router",
            "/readiness",
            _with(_sglang_router, "power_of_two"),
            SGLANG_ROUTER,
            two_legs=False,
        ),
        Router("smg-cache-aware", "/readiness", _with(_smg, "cache_aware"), SMG, two_legs=False),
    )
}
# The default routers; ratios are to the first.
DEFAULT = ("ours", "vllm-router", "direct")
