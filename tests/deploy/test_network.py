"""NetworkPolicies allow the required connections, and none of the others listed here.

The rules are read as Kubernetes reads them; that a cluster's network plugin enforces them is not
shown here.
"""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.deploy.conftest import overlay
from tests.deploy.rendered import Pods, Rendered

Labels = Mapping[str, str]

MONITORING = "monitoring"


def matches(selector: Mapping[str, Any] | None, labels: Labels) -> bool:
    """Whether a selector of equalities takes these labels; an empty one takes all."""
    assert selector is None or selector.keys() <= {"matchLabels"}
    return selector is None or selector.get("matchLabels", {}).items() <= labels.items()


def is_peer(peer: Mapping[str, Any], labels: Labels, namespace: str | None) -> bool:
    """Whether a rule's peer is this pod; without a namespace it is in the policy's own."""
    if "namespaceSelector" in peer:
        inside = {} if namespace is None else {"kubernetes.io/metadata.name": namespace}
        if not inside or not matches(peer["namespaceSelector"], inside):
            return False
    elif namespace is not None:
        return False
    return matches(peer.get("podSelector"), labels)


def admits(
    rendered: Rendered, to: Pods, port: str, labels: Labels, namespace: str | None = None
) -> bool:
    """Whether a pod with these labels may connect there."""
    policies = [
        each["spec"]
        for each in rendered.of("NetworkPolicy").values()
        if matches(each["spec"]["podSelector"], to.labels)
    ]
    assert policies, f"{to.name} is open to all"
    for rule in (rule for policy in policies for rule in policy["ingress"]):
        ports = [each["port"] for each in rule.get("ports", [])]
        assert set(ports) <= to.ports.keys()
        is_from = "from" not in rule or any(is_peer(p, labels, namespace) for p in rule["from"])
        if is_from and (not ports or port in ports):
            return True
    return False


STRANGER = {"app": "shop"}


def has_admin_port(rendered: Rendered) -> bool:
    """Whether operators have a port of their own; the gate measures the only one there is."""
    return "PD_ROUTER_ADMIN_PORT" in rendered.configuration(rendered.router)


def test_clients_reach_the_router_and_not_its_admin_port(rendered: Rendered) -> None:
    router = rendered.router
    assert admits(rendered, router, "http", STRANGER)
    assert admits(rendered, router, "http", STRANGER, "shop")
    assert not admits(rendered, router, "admin", STRANGER)
    assert not admits(rendered, router, "admin", STRANGER, "shop")


def test_only_routers_engines_and_monitoring_reach_engines(rendered: Rendered) -> None:
    for pool in rendered.engines.values():
        for port in pool.ports:
            assert not admits(rendered, pool, port, STRANGER)
            assert not admits(rendered, pool, port, STRANGER, "shop")
            assert admits(rendered, pool, port, rendered.router.labels)
            for other in rendered.engines.values():
                assert admits(rendered, pool, port, other.labels)


def test_a_router_of_another_namespace_is_a_stranger(rendered: Rendered) -> None:
    for pool in rendered.engines.values():
        assert not admits(rendered, pool, "http", rendered.router.labels, "shop")


def test_prometheus_reads_metrics_and_nothing_else(rendered: Rendered) -> None:
    prometheus = {"app.kubernetes.io/name": "prometheus"}
    port = "admin" if has_admin_port(rendered) else "http"
    assert admits(rendered, rendered.router, port, prometheus, MONITORING)
    for pool in rendered.engines.values():
        assert admits(rendered, pool, "http", prometheus, MONITORING)
        assert not admits(rendered, pool, "kv-events", prometheus, MONITORING)


def test_routers_report_their_counts_to_each_other(rendered: Rendered) -> None:
    may = admits(rendered, rendered.router, "admin", rendered.router.labels)
    assert may is has_admin_port(rendered)


def test_the_gate_watches_the_engines() -> None:
    gate = overlay("gate")
    assert admits(gate, gate.engines["engine"], "http", gate.job.labels)
    assert not admits(gate, gate.engines["engine"], "kv-events", gate.job.labels)


@pytest.mark.parametrize(("pool", "may"), [("prefill", True), ("decode", False)])
def test_prefill_engines_report_their_transfers(pool: str, may: bool) -> None:
    lmcache = overlay("lmcache")
    port = "lmcache-notify"
    assert admits(lmcache, lmcache.router, port, lmcache.engines[pool].labels) is may
    assert not admits(lmcache, lmcache.router, port, STRANGER)
