"""The order of a run, and its cleanup."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace

import pytest

from benchmarks.gate.cluster.command import OVERLAY
from benchmarks.gate.cluster.kubectl import ClusterTrouble, Kubectl
from benchmarks.gate.cluster.procedure import OUTAGE_S, Plan, Procedure
from benchmarks.system.signals import ENDING
from tests.benchmarks.gate.cluster.conftest import READY, FakeCluster
from tests.benchmarks.gate.cluster.objects import ended_pod, engine_pod, gate_job, node, pod

NAME = "pd-router-gate-1"
PLAN = Plan(OVERLAY, NAME, 8, {"--platform": "h100-eks"}, True, 60.0, 90.0)


class Run:
    """A procedure whose waits take no time."""

    def __init__(self, plan: Plan = PLAN, kubectl: Kubectl | None = None) -> None:
        self.said: list[str] = []
        self.now = 0.0
        asked = kubectl or Kubectl()
        self.procedure = Procedure(plan, asked, self.said.append, lambda: self.now, self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def fails(self) -> str:
        """Its trouble."""
        with pytest.raises(ClusterTrouble) as told:
            self.procedure.carry_out()
        return str(told.value)


def test_engines_come_first_then_the_job_and_all_of_it_goes(cluster: FakeCluster) -> None:
    cluster.says("what the gate said")
    run = Run()
    measured = run.procedure.carry_out()
    assert (measured.exit_status, measured.log.strip()) == (0, "what the gate said")
    engines, job = cluster.applied
    assert {"StatefulSet", "Deployment"} <= {each["kind"] for each in engines}
    assert [each["kind"] for each in job] == ["Job"]
    order = [words[:2] for words in cluster.calls if words[0] in ("create", "apply", "delete")]
    assert order == [
        ("create", "namespace"),
        *[("apply", "--filename=-")] * 2,
        ("delete", "namespace"),
    ]
    assert cluster.did("delete", "namespace", NAME)


def test_it_waits_for_all_engines(cluster: FakeCluster) -> None:
    cluster.save(engines=[[], READY[:7], READY])
    run = Run()
    run.procedure.carry_out()
    counts = [text for text in run.said if "engines are ready" in text]
    assert counts == [f"{ready} of 8 engines are ready" for ready in (0, 7, 8)]
    assert run.now == 2 * PLAN.poll_s


def test_it_waits_for_the_gate(cluster: FakeCluster) -> None:
    cluster.save(gate=[[], [engine_pod("gate-x")], *cluster.answers["gate"]])
    run = Run()
    assert run.procedure.carry_out().exit_status == 0
    assert run.now == 2 * PLAN.poll_s


def troubles() -> Iterator[tuple[dict[str, object], str]]:
    """Errors after the namespace exists, and their messages."""
    lost = engine_pod("engine-7", unschedulable="Insufficient nvidia.com/gpu")
    image = engine_pod("engine-0", waiting=("ErrImagePull", "no such tag"))
    yield {"engines": [[*READY[:7], lost]]}, "engine-7 finds no place: Insufficient nvidia.com/gpu"
    yield {"engines": [[image]]}, "engine-0: ErrImagePull: no such tag .push the image"
    yield {"engines": [READY[:7]]}, "7 of 8 engines were ready after 65 s.*--ready-timeout"
    yield {"gate": [[]]}, "the gate had not ended after 95 s"
    yield {"gate": [[engine_pod("gate-x", waiting=("ErrImagePull", "x"))]]}, "gate-x: ErrImagePull"
    limit = gate_job("Failed", "Job has reached the specified backoff limit")
    yield {"gate": [[]], "jobs": [limit]}, "over .Failed: Job has reached .*evicted, drained or"
    yield {"gate": [[]], "jobs": []}, "over .somebody deleted it"


@pytest.mark.parametrize(("answers", "told"), list(troubles()))
def test_errors_are_reported_and_leave_no_state(
    answers: dict[str, object], told: str, cluster: FakeCluster
) -> None:
    cluster.save(**answers)
    with pytest.raises(ClusterTrouble, match=told):
        Run().procedure.carry_out()
    assert cluster.did("delete", "namespace", NAME)


def test_a_pod_that_finds_no_place_for_a_moment_is_waited_for(cluster: FakeCluster) -> None:
    lost = engine_pod("engine-7", unschedulable="Insufficient nvidia.com/gpu")
    cluster.save(engines=[[*READY[:7], lost], READY])
    assert Run().procedure.carry_out().exit_status == 0


def test_without_cleanup_the_namespace_stays_with_a_delete_command(cluster: FakeCluster) -> None:
    run = Run(replace(PLAN, cleanup=False))
    run.procedure.carry_out()
    assert not cluster.did("delete")
    assert run.said[-1] == f"left as it is; to end it: kubectl delete namespace {NAME}"


# Answers of the cluster that do not come.

# A few tries are as good as many.
HURRIED = replace(PLAN, poll_s=OUTAGE_S / 2)


@pytest.mark.parametrize("command", ["get", "logs", "delete"])
def test_a_missing_answer_is_requested_again(command: str, cluster: FakeCluster) -> None:
    cluster.says("what the gate said")
    run = Run(HURRIED, Unanswered(cluster, command, 2))
    assert run.procedure.carry_out().log.strip() == "what the gate said"
    told = "The connection to the server was refused"
    assert sum(told in each for each in run.said) == 1, "it is said once"
    assert run.now == OUTAGE_S
    assert run.said[-1] == f"namespace {NAME} is being deleted"


@pytest.mark.parametrize("command", ["get", "logs"])
def test_a_cluster_outage_is_reported(command: str, cluster: FakeCluster) -> None:
    run = Run(HURRIED, Unanswered(cluster, command, 3))
    assert "was refused" in run.fails()
    assert cluster.did("delete", "namespace", NAME)


def test_a_failed_deletion_of_the_namespace_is_reported_and_the_measurement_kept(
    cluster: FakeCluster,
) -> None:
    cluster.says("what the gate said")
    run = Run(HURRIED, Unanswered(cluster, "delete", 3))
    assert run.procedure.carry_out().log.strip() == "what the gate said"
    assert run.said[-1].endswith(f"namespace {NAME} is left: kubectl delete namespace {NAME}")


def test_the_error_is_reported_even_if_the_namespace_cannot_be_deleted(
    cluster: FakeCluster,
) -> None:
    cluster.save(engines=[[engine_pod("engine-0", waiting=("ErrImagePull", "no such tag"))]])
    assert "no such tag" in Run(HURRIED, Unanswered(cluster, "delete", 3)).fails()


def test_a_namespace_that_may_have_been_created_is_deleted(cluster: FakeCluster) -> None:
    cluster.save(refused={"create": 1})
    assert "was refused" in Run().fails()
    assert cluster.did("delete", "namespace", NAME)


class Unanswered(Kubectl):
    """Once the namespace is there, the next so many of these commands are refused."""

    def __init__(self, cluster: FakeCluster, command: str, count: int) -> None:
        super().__init__()
        self._cluster, self._refused = cluster, {command: count}

    def run(self, *arguments: str, given: str | None = None) -> str:
        found = super().run(*arguments, given=given)
        if arguments[0] == "create":
            self._cluster.save(refused=self._refused)
        return found


class Struck(Kubectl):
    """A signal comes while it deletes."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__()
        self._number = number

    def run(self, *arguments: str, given: str | None = None) -> str:
        if arguments[0] == "delete":
            os.kill(os.getpid(), self._number)
        return super().run(*arguments, given=given)


@pytest.mark.parametrize("number", ENDING)
def test_nothing_interrupts_the_end(number: signal.Signals, cluster: FakeCluster) -> None:
    before = signal.signal(number, signal.default_int_handler)
    try:
        Run(PLAN, Struck(number)).procedure.carry_out()
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)
    assert cluster.did("delete", "namespace", NAME)


def test_a_failed_gate_job_reports_its_own_end(cluster: FakeCluster) -> None:
    cluster.save(jobs=[gate_job("Failed")], gate=[[ended_pod(1)]])
    assert Run().procedure.carry_out().exit_status == 1


# Before anything is created.


def test_taken_gpus_end_it_at_once(cluster: FakeCluster) -> None:
    cluster.save(pods=[pod("train", "n0", 5)])
    assert "n0: 3 of 8 free (team/train has 5)" in Run().fails()
    assert not cluster.did("create")


def test_rights_that_are_missing_are_all_named(cluster: FakeCluster) -> None:
    cluster.save(forbidden=["create namespaces", "list nodes"])
    assert "you may not: create namespaces, list nodes; ask for these rights" in Run().fails()
    assert not cluster.did("create")


def test_gpus_beyond_a_node_are_not_looked_for_elsewhere(cluster: FakeCluster) -> None:
    cluster.save(nodes=[node("n0", 4), node("n1", 4)])
    assert "n0: 4 of 4 free; n1: 4 of 4 free" in Run().fails()


def test_an_overlay_that_is_not_there_is_named(cluster: FakeCluster) -> None:
    assert "no overlay at" in Run(replace(PLAN, overlay=OVERLAY / "x")).fails()


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("The connection to the server 10.0.0.1:6443 was refused", "does not answer"),
        (
            "error: You must be logged in to the server (Unauthorized)",
            "log in to the cluster again",
        ),
        ("error: no configuration has been provided, try setting", "kubectl config use-context"),
    ],
)
def test_a_cluster_without_an_answer_is_reported_with_the_remedy(
    said: str, advice: str, cluster: FakeCluster
) -> None:
    cluster.save(fail=said)
    told = Run().fails()
    assert said in told
    assert advice in told
