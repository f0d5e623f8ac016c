"""Figures of several processes as those of one."""

import os
from pathlib import Path

import pytest
from prometheus_client import values

from router.core.fleet.fleet import Fleet
from router.core.fleet.ledger import Ledger
from router.core.health import HealthThresholds
from router.telemetry.metrics import Metrics, WorkerGroup
from router.telemetry.processes import CPU, Processes
from router.telemetry.text_format import PLAIN


def cpu(processes: Processes) -> float:
    """Their reported CPU time."""
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


def test_the_longest_lag_stays_when_a_worker_is_restarted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(values, "ValueClass", values.ValueClass)
    fleet = Fleet((), Ledger(), HealthThresholds(), stale_after=3.0)
    for lag in (4.0, 0.5):
        metrics = Metrics(fleet, list, WorkerGroup(tmp_path, 0, list, lambda: 0))
        metrics.observe_loop_lag(lag)
        text = b"".join(each for each in metrics.counts(PLAIN) if each)
        metrics.close()
        assert b"\npd_router_event_loop_lag_max_seconds 4.0\n" in text
