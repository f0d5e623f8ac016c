"""A vLLM-like engine over real HTTP: for the demonstration, the tests and simple benchmarks.

    async with serve_engine(EngineConfig(role="prefill")) as engine:
        ...  # engine.url, engine.state, engine.requests, await engine.set_faults(status=503)

It batches, caches prefixes, hands KV caches over as NIXL, LMCache and a shared store do, and does
wrong on demand. Its text is a hash of everything it was given, so that a router's mistake shows in
the answer. It knows nothing of the router.
`python -m router.simulator --help` runs it as a process.
"""

from router.simulator.config import ConfigError, EngineConfig
from router.simulator.faults import FaultError, Faults
from router.simulator.frontend.server import RunningEngine, serve_engine
from router.simulator.records import Request

__all__ = [
    "ConfigError",
    "EngineConfig",
    "FaultError",
    "Faults",
    "Request",
    "RunningEngine",
    "serve_engine",
]
