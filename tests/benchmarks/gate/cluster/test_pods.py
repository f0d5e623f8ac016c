"""States read from the pods of a run."""

import pytest

from benchmarks.gate.cluster.pods import (
    PERMANENT_REASONS,
    exit_status,
    is_ready,
    job_over,
    permanent_failure,
    unschedulable,
)
from tests.benchmarks.gate.cluster.objects import ended_pod, engine_pod, gate_job


def test_a_pod_is_ready_by_its_ready_condition() -> None:
    assert is_ready(engine_pod("engine-0", ready=True))
    assert not is_ready(engine_pod("engine-0"))
    assert not is_ready({"metadata": {"name": "x"}})


@pytest.mark.parametrize("reason", PERMANENT_REASONS)
def test_permanent_errors_are_reported_with_the_remedy(reason: str) -> None:
    pods = [engine_pod("engine-0", ready=True), engine_pod("engine-1", waiting=(reason, "why"))]
    assert permanent_failure(pods) == f"pod engine-1: {reason}: why ({PERMANENT_REASONS[reason]})"


def test_a_container_that_is_being_created_is_waited_for() -> None:
    assert permanent_failure([engine_pod("engine-0", waiting=("ContainerCreating", ""))]) is None
    assert permanent_failure([]) is None


def test_an_unschedulable_pod_is_reported() -> None:
    found = unschedulable([engine_pod("engine-3", unschedulable="0/4 nodes: Insufficient gpu.")])
    assert found == "pod engine-3 finds no place: 0/4 nodes: Insufficient gpu."
    assert unschedulable([engine_pod("engine-0")]) is None


def test_the_exit_status_is_that_of_the_container() -> None:
    assert exit_status([ended_pod(1)]) == 1
    assert exit_status([engine_pod("gate-x")]) is None
    assert exit_status([]) is None


def test_a_job_ends_by_its_status_or_its_absence() -> None:
    assert job_over([gate_job()]) is None
    assert job_over([{"metadata": {"name": "gate"}}]) is None
    assert job_over([gate_job("Failed", "BackoffLimit")]) == "Failed: BackoffLimit"
    assert job_over([gate_job("Complete")]) == "Complete: no message"
    assert job_over([]) == "somebody deleted it"
