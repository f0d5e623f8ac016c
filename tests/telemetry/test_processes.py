"""Figures of several processes as those of one."""

import os

import pytest

from router.telemetry.processes import CPU, Processes


def cpu(processes: Processes) -> float:
    """The CPU time that they tell."""
    [metric] = [each for each in processes.collect() if each.name == CPU]
    return metric.samples[0].value


def test_the_cpu_time_of_processes_that_ended_stays_in_the_sum() -> None:
    me = os.getpid()
    pids, ended = [me, me], 0.0
    processes = Processes(lambda: pids, lambda: ended)
    both = cpu(processes)
    pids, ended = [me], both / 2
    assert cpu(processes) >= both


def test_one_that_ends_while_they_are_added_up_is_not_counted_twice() -> None:
    me = os.getpid()
    answers = iter([0.0, 1000.0, 1000.0, 1000.0])
    assert cpu(Processes(lambda: [me], lambda: next(answers))) == pytest.approx(
        cpu(Processes(lambda: [me], lambda: 1000.0)), abs=5.0
    )
