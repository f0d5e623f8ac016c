"""Every object is one that Kubernetes takes: validated against the API's own schemas.

Those of the Prometheus Operator are not among them; tests/deploy/test_monitoring.py looks at them.
"""

from typing import Any

import kubernetes_validate
import pytest

from tests.deploy.conftest import OVERLAYS, overlay
from tests.deploy.test_versions import VERSIONS

OPERATOR = "monitoring.coreos.com/v1"

RELEASES = [VERSIONS["kubernetes"], VERSIONS["kubernetes-dra"]]


def check(each: dict[str, Any], release: str) -> None:
    """Raises kubernetes_validate.ValidationError, also for fields that there are not."""
    kubernetes_validate.validate(each, release, strict=True)


@pytest.mark.parametrize("name", OVERLAYS)
@pytest.mark.parametrize("release", RELEASES)
def test_objects_are_valid(name: str, release: str) -> None:
    if (name, release) == ("dra", VERSIONS["kubernetes"]):
        pytest.skip("resource.k8s.io/v1 is younger")
    checked = 0
    for each in overlay(name).objects:
        if each["apiVersion"] != OPERATOR:
            check(each, release)
            checked += 1
    assert checked > 10


@pytest.mark.parametrize(
    "change",
    [
        {"replica": 1},
        {"replicas": "1"},
        {"template": []},
    ],
)
def test_what_kubernetes_would_refuse_is_found(change: dict[str, Any]) -> None:
    workload = overlay("plain").router.workload
    with pytest.raises(kubernetes_validate.ValidationError):
        check({**workload, "spec": {**workload["spec"], **change}}, VERSIONS["kubernetes"])
