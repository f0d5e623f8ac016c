"""The gate's Job has valid options of `pd-bench validate` for the objects beside it."""

from datetime import UTC, datetime

import pytest

from benchmarks.gate import options
from benchmarks.gate.analysis.verdict import Exit
from benchmarks.gate.profiles import PLATFORMS
from tests.deploy.conftest import SettingsOf, overlay
from tests.deploy.dockerfile import read
from tests.deploy.places import DOCKERFILE
from tests.deploy.rendered import Rendered

GATE = "pd-router-gate"


@pytest.fixture
def gate() -> Rendered:
    return overlay("gate")


def plan_of(gate: Rendered) -> options.Plan:
    """What the Job's command line comes to."""
    command, *arguments = gate.job.container["args"]
    assert command == "validate"
    configured = gate.configuration(gate.job)
    for name, value in configured.items():
        arguments = [each.replace(f"$({name})", value) for each in arguments]
    return options.plan(options.parser().parse_args(arguments), datetime(2026, 1, 1, tzinfo=UTC))


def test_it_measures_the_router_beside_it(gate: Rendered, settings_of: SettingsOf) -> None:
    plan = plan_of(gate)
    [port] = gate.of("Service")["pd-router"]["spec"]["ports"]
    assert plan.address.url == f"http://pd-router:{port['port']}"
    assert plan.model == gate.configuration(gate.engines["engine"])["MODEL"]
    # The list of engines is on the port that it measures.
    assert settings_of(gate).admin_port is None
    assert settings_of(gate).engine_header == "on"


def test_nothing_leads_to_the_admin_port_that_it_does_without(gate: Rendered) -> None:
    assert gate.router.ports == {"http": 8000}
    assert gate.of("Service").keys() == {gate.router.name, *gate.engines}


def test_it_is_the_validators_topology_and_load(gate: Rendered) -> None:
    plan = plan_of(gate)
    assert gate.router.replicas == 1
    assert gate.engines["engine"].replicas == plan.gpus == plan.workers_expected == 8
    assert (plan.concurrency, plan.requests, plan.warmup) == (2048, 16384, 2048)


def test_all_engines_are_on_one_node(gate: Rendered) -> None:
    [term] = gate.engines["engine"].spec["affinity"]["podAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert gate.selected(term["labelSelector"]["matchLabels"]) == ["engine"]


def test_its_thresholds_are_a_platforms(gate: Rendered) -> None:
    platform = PLATFORMS[gate.configuration(gate.job)["PLATFORM"]]
    assert plan_of(gate).constraints == platform.constraints


def test_it_has_a_namespace_of_its_own(gate: Rendered) -> None:
    [namespace] = gate.of("Namespace")
    inside = [each for each in gate.objects if each["kind"] != "Namespace"]
    assert {each["metadata"]["namespace"] for each in inside} == {namespace} == {GATE}


def test_its_exit_status_is_the_verdict(gate: Rendered) -> None:
    spec = gate.job.workload["spec"]
    assert spec["backoffLimit"] == 0
    assert gate.job.spec["restartPolicy"] == "Never"
    assert set(Exit) == {0, 1, 2, 3}
    assert plan_of(gate).sentinel
    # It gives up before Kubernetes does.
    assert spec["activeDeadlineSeconds"] > plan_of(gate).readiness.window


def test_it_is_started_as_the_image_is_made(gate: Rendered) -> None:
    assert "command" not in gate.job.container
    stage = next(
        stage for stage in read(DOCKERFILE.read_text()) if stage[0].text.endswith("AS gate")
    )
    entry, user = (
        next(each for each in stage if each.name == name) for name in ("ENTRYPOINT", "USER")
    )
    assert entry.exec_form == ["pd-bench"]
    context = gate.job.spec["securityContext"]
    assert user.text == f"{context['runAsUser']}:{context['runAsGroup']}"
    mounted = {each["mountPath"] for each in gate.job.container["volumeMounts"]}
    assert mounted == {"/tmp", str(plan_of(gate).out.parent)}


def test_it_is_confined(gate: Rendered) -> None:
    assert gate.job.spec["automountServiceAccountToken"] is False
    assert gate.job.container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
