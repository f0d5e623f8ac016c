"""Every object is one that Kubernetes takes: validated against the API's own schemas.

Those of the Prometheus Operator are not among them; tests/deploy/test_monitoring.py looks at them.
"""

from typing import Any

import kubernetes_validate
import pytest

from tests.deploy.conftest import OVERLAYS, overlay, with_admin_key
from tests.deploy.test_versions import VERSIONS

OPERATOR = "monitoring.coreos.com/v1"

RELEASES = [VERSIONS["kubernetes"], VERSIONS["kubernetes-dra"]]


def check(each: dict[str, Any], release: str) -> None:
    """Raises kubernetes_validate.ValidationError, also for fields that there are not."""
    kubernetes_validate.validate(each, release, strict=True)


OVERLAYS_BY_RELEASE = [
    (name, release)
    for name in OVERLAYS
    for release in RELEASES
    # resource.k8s.io/v1 is younger.
    if (name, release) != ("dra", VERSIONS["kubernetes"])
]


@pytest.mark.parametrize(("name", "release"), OVERLAYS_BY_RELEASE)
def test_objects_are_valid(name: str, release: str) -> None:
    theirs = [each for each in overlay(name).objects if each["apiVersion"] != OPERATOR]
    assert len(theirs) > 10
    for each in theirs:
        check(each, release)


@pytest.mark.parametrize("name", [name for name in OVERLAYS if name != "gate"])
def test_objects_that_the_admin_key_changes_are_valid(name: str) -> None:
    without = overlay(name).objects
    changed = [each for each in with_admin_key(name).objects if each not in without]
    assert "Deployment" in {each["kind"] for each in changed}
    for each in changed:
        if each["apiVersion"] != OPERATOR:
            for release in RELEASES:
                check(each, release)


@pytest.mark.parametrize(
    "change",
    [
        {"replica": 1},
        {"replicas": "1"},
        {"template": []},
    ],
)
def test_invalid_kubernetes_objects_are_found(change: dict[str, Any]) -> None:
    workload = overlay("plain").router.workload
    with pytest.raises(kubernetes_validate.ValidationError):
        check({**workload, "spec": {**workload["spec"], **change}}, VERSIONS["kubernetes"])
