"""Small clusters for the tests of the virtual time."""

from router.simulator.virtual.cluster import simulate
from router.simulator.virtual.results import Result
from router.simulator.virtual.values import Change, EngineModel, Lengths, Scenario, Workload

SED = "shortest_expected_delay"
STEP = 0.02


def cluster(
    *changes: Change,
    engines: int = 8,
    streams: int = 96,
    requests: int = 2400,
    replicas: int = 1,
    prompt: Lengths = Lengths(32),  # noqa: B008 - frozen
    output: Lengths = Lengths(50),  # noqa: B008 - frozen
    model: EngineModel = EngineModel(max_num_seqs=16, step_seconds=STEP),  # noqa: B008 - frozen
) -> Scenario:
    """Eight engines of 16 slots with room for a third more than is asked of them."""
    work = Workload(requests, streams, prompt, output)
    return Scenario("test", engines, model, work, replicas, changes)


def run(scenario: Scenario, policy: str = SED, seed: int = 1) -> Result:
    """The result of a run."""
    return simulate(scenario, policy, seed=seed)
