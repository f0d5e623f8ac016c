"""The base of each scenario: its size, and the usual engines and requests."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from router.simulator.virtual.values import Change, EngineModel, Lengths, Scenario, Workload

STREAMS_PER_ENGINE = 48
REQUESTS_PER_ENGINE = 750
"""384 streams and 6000 requests on 8 engines, as in the measurements of real routers."""

ENGINE = EngineModel()
WORKLOAD = Workload(0, 0, Lengths(32), Lengths(50))


@dataclass(frozen=True, slots=True)
class Size:
    """The size of any scenario; None means the scenario's own value."""

    engines: int = 8
    streams: int | None = None
    requests: int | None = None
    replicas: int | None = None
    has_peers: bool = False
    """Whether replicas tell each other of their requests and prompts."""
    seed: int = 1
    """Of the loads that are drawn at random."""


def base_of(name: str, size: Size) -> Scenario:
    """A healthy cluster of that size."""
    work = replace(
        WORKLOAD,
        streams=STREAMS_PER_ENGINE * size.engines,
        requests=REQUESTS_PER_ENGINE * size.engines,
    )
    return Scenario(name, size.engines, ENGINE, work)


Maker = Callable[[Scenario, Size], Scenario]
"""Creates a scenario from the base and the chosen size."""


def changed(*changes: Change) -> Maker:
    """The base with these changes."""
    return lambda base, _size: replace(base, changes=changes)
