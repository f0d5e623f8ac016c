"""The overlay of the gate, fitted to a run."""

from typing import Any

import pytest

from benchmarks.gate.cluster.kubectl import ClusterTrouble
from benchmarks.gate.cluster.manifests import Fitted, Run, fitted
from tests.deploy.conftest import overlay

THRESHOLDS = {"--platform": None, "--throughput": ">= 9"}


def fit(gpus: int = 4, **options: str | None) -> Fitted:
    """The real overlay."""
    run = Run("gate-1", "node-7", gpus, options or THRESHOLDS)
    return fitted(overlay("gate").objects, run)


def of(found: Fitted, kind: str) -> dict[str, Any]:
    """The one object of a kind."""
    [each] = [each for each in found.objects if each["kind"] == kind]
    return each


def test_everything_is_in_the_namespace_of_the_run() -> None:
    found = fit()
    inside = [each for each in (*found.objects, found.job) if each["kind"] != "Namespace"]
    assert {each["metadata"]["namespace"] for each in inside} == {"gate-1"}
    assert of(found, "Namespace")["metadata"]["name"] == "gate-1"
    assert of(found, "RoleBinding")["subjects"][0]["namespace"] == "gate-1"


def test_as_many_engines_as_gpus_are_on_the_node() -> None:
    found = fit()
    pool = of(found, "StatefulSet")["spec"]
    assert pool["replicas"] == found.engines == 4
    assert pool["template"]["spec"]["nodeSelector"] == {"kubernetes.io/hostname": "node-7"}


def arguments(found: Fitted) -> list[str]:
    """Of the Job's command."""
    [container] = found.job["spec"]["template"]["spec"]["containers"]
    found_: list[str] = container["args"]
    return found_


def test_the_job_gets_the_constraints_of_the_run() -> None:
    given = arguments(fit())
    assert {"--gpus=4", "--workers-expected=4", "--throughput=>= 9"} <= set(given)
    assert given[0] == "validate"
    names = [each.partition("=")[0] for each in given]
    assert len(set(names)) == len(names)
    assert "--platform" not in names


def test_the_job_is_not_applied_with_the_engines() -> None:
    assert "Job" not in {each["kind"] for each in fit().objects}


def test_the_overlay_stays_as_it_is() -> None:
    before = [*overlay("gate").objects]
    fit()
    assert overlay("gate").engines["engine"].replicas == 8
    assert [*overlay("gate").objects] == before


def test_gpus_that_are_no_multiple_of_an_engines_are_refused() -> None:
    objects = [
        {"kind": "ConfigMap", "metadata": {"name": "engine"}, "data": {"TENSOR_PARALLEL_SIZE": "4"}}
    ]
    with pytest.raises(ClusterTrouble, match="--gpus 6 is no multiple of the 4 GPUs"):
        fitted(objects, Run("g", "n", 6, {}))


def test_an_overlay_of_another_kind_is_refused() -> None:
    with pytest.raises(ClusterTrouble, match="2 objects of kind StatefulSet"):
        fitted(overlay("disaggregated").objects, Run("g", "n", 2, {}))
