"""How many streams this machine lets one process hold, and a scenario that fits into it."""

import resource
from dataclasses import replace

from benchmarks.comparison.scenarios import Scenario

# One towards the client, one towards the engine.
FILES_PER_STREAM = 2
# What a process has open besides: its own files, probes, idle connections.
SPARE_FILES = 400


def raise_files() -> int:
    """Raise the limit of open files of this process and its children; return it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def fit(scenario: Scenario, files: int) -> Scenario:
    """The scenario with no more clients than a router with so many files can hold."""
    most = max((files - SPARE_FILES) // FILES_PER_STREAM, 1)
    return replace(scenario, clients=min(scenario.clients, most))
