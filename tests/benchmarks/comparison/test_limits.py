import resource

from benchmarks.comparison import limits
from benchmarks.comparison.scenarios import SCENARIOS


def test_a_scenario_has_as_many_streams_as_a_router_has_files_for() -> None:
    idle = SCENARIOS["idle-streams"]
    assert limits.fit(idle, 20_400).clients == 10_000
    assert limits.fit(idle, 20_000).clients == 9800
    assert limits.fit(idle, 1).clients == 1


def test_processes_get_all_the_files_that_they_may_have() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        assert limits.raise_files() == before[1]
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == before[1]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
