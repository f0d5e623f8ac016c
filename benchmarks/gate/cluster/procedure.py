"""One run of the gate on a cluster: find a node, start routers and engines, let the Job measure,
fetch its result, and delete everything."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from benchmarks.gate.cluster.capacity import node_with, nodes_of
from benchmarks.gate.cluster.kubectl import ClusterTrouble, Kubectl
from benchmarks.gate.cluster.manifests import Fitted, Run, fitted
from benchmarks.gate.cluster.pods import (
    exit_status,
    is_ready,
    job_over,
    permanent_failure,
    unschedulable,
)
from benchmarks.system.signals import ignored

RIGHTS = (
    ("create", "namespaces"),
    ("delete", "namespaces"),
    ("list", "nodes"),
    ("list", "pods", "--all-namespaces"),
    ("create", "statefulsets.apps"),
    ("create", "deployments.apps"),
    ("create", "jobs.batch"),
    ("list", "jobs.batch"),
    ("create", "rolebindings.rbac.authorization.k8s.io"),
)
"""The required rights that can be checked before the namespace exists."""

ENGINES, JOB = "app.kubernetes.io/name=vllm", "app.kubernetes.io/name=pd-router-gate"
# An engine's pod unschedulable for this long has lost its GPUs to another pod.
PLACE_S = 60.0
# Longest outage of the API server that is tolerated: an upgrade, a VPN that reconnects.
OUTAGE_S = 120.0

T = TypeVar("T")
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a run, with its time-outs."""

    overlay: Path
    namespace: str
    gpus: int
    options: Mapping[str, str | None]
    cleanup: bool
    ready_s: float
    measure_s: float
    poll_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Measured:
    """The Job's result."""

    exit_status: int
    log: str


class Procedure:
    """One run. `clock` is monotonic, in seconds."""

    def __init__(
        self,
        plan: Plan,
        kubectl: Kubectl,
        say: Say,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._plan = plan
        self._kubectl = kubectl
        self._say = say
        self._clock = clock
        self._sleep = sleep

    def carry_out(self) -> Measured:
        """Raises ClusterTrouble."""
        run = self._fitted()
        with self._namespace():
            self._apply(run.objects)
            self._wait_for_engines(run.engines)
            self._apply([run.job])
            return self._measured()

    def _fitted(self) -> Fitted:
        """All checks before the first object is created."""
        plan, kubectl = self._plan, self._kubectl
        if not plan.overlay.is_dir():
            raise ClusterTrouble(f"no overlay at {plan.overlay}: use a checkout, or --overlay")
        rendered = kubectl.run("kustomize", str(plan.overlay))
        objects = list(yaml.safe_load_all(rendered))
        if missing := kubectl.forbidden(RIGHTS):
            raise ClusterTrouble(
                f"you may not: {', '.join(missing)}; ask for these rights: docs/gate.md, "
                "On a cluster"
            )
        nodes = nodes_of(kubectl.items("nodes"), kubectl.items("pods", "--all-namespaces"))
        node = node_with(plan.gpus, nodes)
        self._say(f"node {node.line}")
        return fitted(objects, Run(plan.namespace, node.name, plan.gpus, plan.options))

    @contextmanager
    def _namespace(self) -> Iterator[None]:
        """The run's own, until the end."""
        name = self._plan.namespace
        try:
            # It may have been created although the call failed.
            self._kubectl.run("create", "namespace", name)
            self._say(f"namespace {name}")
            yield
        finally:
            if self._plan.cleanup:
                self._delete(name)
            else:
                self._say(f"left as it is; to end it: kubectl delete namespace {name}")

    def _delete(self, name: str) -> None:
        """Never raises: the measurement, or the first error, counts. Not interruptible, because it
        holds GPUs."""
        command = ("delete", "namespace", name, "--wait=false", "--ignore-not-found")
        with ignored():
            try:
                self._patiently(lambda: self._kubectl.run(*command))
            except (ClusterTrouble, OSError) as trouble:
                self._say(f"{trouble}\nnamespace {name} is left: kubectl delete namespace {name}")
            else:
                self._say(f"namespace {name} is being deleted")

    def _patiently(self, ask: Callable[[], T]) -> T:
        """kubectl's answer, with retries: one failure must not end an hour of waiting. Raises
        ClusterTrouble after OUTAGE_S without an answer."""
        begin, said = self._clock(), ""
        while True:
            try:
                return ask()
            except ClusterTrouble as trouble:
                if self._clock() - begin >= OUTAGE_S:
                    raise
                if str(trouble) != said:
                    said = str(trouble)
                    self._say(f"{said}; asking again for up to {OUTAGE_S:.0f} s")
            self._sleep(self._plan.poll_s)

    def _apply(self, objects: Iterable[Mapping[str, Any]]) -> None:
        wanted = [each for each in objects if each["kind"] != "Namespace"]
        self._kubectl.run("apply", "--filename=-", given=yaml.safe_dump_all(wanted))

    def _found(self, kind: str, selector: str) -> list[dict[str, Any]]:
        """The run's objects of a kind."""
        options = (f"--namespace={self._plan.namespace}", f"--selector={selector}")
        return self._patiently(lambda: self._kubectl.items(kind, *options))

    def _wait_for_engines(self, wanted: int) -> None:
        begin, said = self._clock(), -1
        while True:
            pods = self._found("pods", ENGINES)
            ready, lasted = sum(map(is_ready, pods)), self._clock() - begin
            if ready != said:
                self._say(f"{ready} of {wanted} engines are ready")
                said = ready
            if ready >= wanted:
                return
            why = permanent_failure(pods)
            if why is None and lasted > PLACE_S:
                why = unschedulable(pods)
            if why is not None:
                raise ClusterTrouble(why)
            if lasted > self._plan.ready_s:
                raise ClusterTrouble(
                    f"{ready} of {wanted} engines were ready after {lasted:.0f} s; look at their "
                    "logs with --no-cleanup, or give them longer: --ready-timeout"
                )
            self._sleep(self._plan.poll_s)

    def _measured(self) -> Measured:
        begin = self._clock()
        self._say("the gate measures")
        while True:
            # Read before the pods: if the Job is over, the pods show how the gate ended.
            over = job_over(self._found("jobs", JOB))
            pods = self._found("pods", JOB)
            status, lasted = exit_status(pods), self._clock() - begin
            if status is not None:
                return Measured(status, self._patiently(self._log))
            if over is not None:
                raise ClusterTrouble(
                    f"the gate's Job is over ({over}), and no pod of it says how: it was evicted, "
                    "drained or deleted"
                )
            why = permanent_failure(pods) or (unschedulable(pods) if lasted > PLACE_S else None)
            if why is not None:
                raise ClusterTrouble(why)
            if lasted > self._plan.measure_s:
                raise ClusterTrouble(
                    f"the gate had not ended after {lasted:.0f} s; its log so far:\n"
                    f"{self._log_or_why_not()}"
                )
            self._sleep(self._plan.poll_s)

    def _log(self) -> str:
        return self._kubectl.run("logs", "job/gate", f"--namespace={self._plan.namespace}")

    def _log_or_why_not(self) -> str:
        try:
            return self._log()
        except ClusterTrouble as trouble:
            return str(trouble)
