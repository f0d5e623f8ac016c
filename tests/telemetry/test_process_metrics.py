"""Figures of several processes as those of one."""

import os
from collections.abc import Iterator, Sequence
from types import FunctionType

import pytest

from router.core.fleet.fleet import Fleet
from router.core.fleet.ledger import Ledger
from router.core.health import HealthThresholds
from router.core.shared_table import SharedTable
from router.telemetry.exposition import PLAIN
from router.telemetry.metrics import Metrics, WorkerGroup
from router.telemetry.process_metrics import CPU, Processes

IS_COMPILED = not isinstance(SharedTable.ended_cpu, FunctionType)


def table_of(pids: Sequence[int], ended_cpu: float = 0.0) -> SharedTable:
    """Of two workers."""
    table = SharedTable(memoryview(bytearray(SharedTable.size(2, 1))), 2, 1)
    for number, pid in enumerate(pids):
        table.register(number, pid)
    table.ended_cpu_seconds[0] = ended_cpu
    return table


def cpu(processes: Processes) -> float:
    """The CPU time of all processes in seconds."""
    [metric] = [each for each in processes.collect() if each.name == CPU]
    return metric.samples[0].value


def test_the_cpu_time_of_processes_that_ended_stays_in_the_sum() -> None:
    me = os.getpid()
    both = cpu(Processes(table_of([me, me])))
    assert cpu(Processes(table_of([me], both / 2))) >= both


@pytest.mark.skipif(IS_COMPILED, reason="a compiled class has no other methods")
def test_one_that_ends_while_they_are_added_up_is_not_counted_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = table_of([os.getpid()])
    answers: Iterator[float] = iter([0.0, 1000.0, 1000.0, 1000.0])
    monkeypatch.setattr(table, "ended_cpu", lambda: next(answers))
    expected = cpu(Processes(table_of([os.getpid()], 1000.0)))
    assert cpu(Processes(table)) == pytest.approx(expected, abs=5.0)


def test_a_single_process_exports_its_own_figures() -> None:
    assert cpu(Processes(None)) == pytest.approx(cpu(Processes(table_of([os.getpid()]))), abs=5.0)


def test_the_longest_lag_stays_when_a_worker_is_restarted() -> None:
    fleet = Fleet((), Ledger(), HealthThresholds(), stale_after=3.0)
    memory = memoryview(bytearray(1 << 20))
    for lag in (4.0, 0.5):
        metrics = Metrics(fleet, list, WorkerGroup(0, [memory], table_of([os.getpid()])))
        metrics.observe_loop_lag(lag)
        text = b"".join(metrics.counts(PLAIN))
        assert b"\npd_router_event_loop_lag_max_seconds 4.0\n" in text
