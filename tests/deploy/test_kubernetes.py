"""The pods live, end, are found and are confined as they should be.

Manifests are rendered and read as data. That Kubernetes takes them is not shown here.
"""

import re
from pathlib import PurePath

import pytest

from tests.deploy.conftest import OVERLAYS, SettingsOf, with_admin_key
from tests.deploy.dockerfile import read
from tests.deploy.places import DOCKERFILE, KUBERNETES, project
from tests.deploy.rendered import Pods, Rendered, Unrendered, render

LAST_FRAMES = 1
"""Seconds that the router takes after its grace, for the last error events."""


def pre_stop(pods: Pods) -> int:
    """Seconds that the pods sleep before SIGTERM."""
    lifecycle = pods.container.get("lifecycle", {})
    seconds: int = lifecycle["preStop"]["sleep"]["seconds"] if lifecycle else 0
    return seconds


class TestProbes:
    def test_the_router_lives_and_is_ready_by_different_routes(self, rendered: Rendered) -> None:
        router = rendered.router.container
        assert router["livenessProbe"]["httpGet"] == {"path": "/health", "port": "http"}
        assert router["readinessProbe"]["httpGet"] == {"path": "/ready", "port": "http"}

    def test_engines_answer_health(self, rendered: Rendered) -> None:
        for pool in rendered.engines.values():
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                asked = pool.container[probe]["httpGet"]
                assert asked == {"path": "/health", "port": "http"}

    def test_an_engine_gives_up_its_start_before_kubernetes_does(self, rendered: Rendered) -> None:
        for pool in rendered.engines.values():
            probe = pool.container["startupProbe"]
            own = int(pool.variables["VLLM_ENGINE_READY_TIMEOUT_S"]["value"])
            assert probe["periodSeconds"] * probe["failureThreshold"] > own

    def test_a_rollout_waits_for_an_engine_that_loads_its_model(self, rendered: Rendered) -> None:
        """And for its image: a router is ready when an engine is."""
        deadline = rendered.router.workload["spec"]["progressDeadlineSeconds"]
        for pool in rendered.engines.values():
            own = int(pool.variables["VLLM_ENGINE_READY_TIMEOUT_S"]["value"])
            assert deadline >= 2 * own


class TestShutdown:
    def test_streams_get_their_grace_before_the_kill(
        self, rendered: Rendered, settings_of: SettingsOf
    ) -> None:
        needed = pre_stop(rendered.router) + settings_of(rendered).shutdown_grace + LAST_FRAMES
        assert rendered.router.spec["terminationGracePeriodSeconds"] > needed

    def test_endpoints_are_withdrawn_before_sigterm(self, rendered: Rendered) -> None:
        assert pre_stop(rendered.router) >= 5

    def test_engines_outlive_a_leaving_routers_streams(
        self, rendered: Rendered, settings_of: SettingsOf
    ) -> None:
        router = pre_stop(rendered.router) + settings_of(rendered).shutdown_grace
        for pool in rendered.engines.values():
            drain = int(pool.option("--shutdown-timeout") or 0)
            assert drain > router
            assert pool.spec["terminationGracePeriodSeconds"] > pre_stop(pool) + drain


class TestSelectors:
    def test_workloads_own_their_pods_and_no_others(self, rendered: Rendered) -> None:
        for pods in rendered.workloads:
            selector = pods.workload["spec"]["selector"]["matchLabels"]
            assert rendered.selected(selector) == [pods.name]

    def test_each_workload_has_a_service_and_a_budget_of_its_name(self, rendered: Rendered) -> None:
        for pods in rendered.workloads:
            service = rendered.of("Service")[pods.name]["spec"]["selector"]
            budget = rendered.of("PodDisruptionBudget")[pods.name]["spec"]["selector"]
            assert rendered.selected(service) == [pods.name]
            assert rendered.selected(budget["matchLabels"]) == [pods.name]

    def test_services_reach_ports_of_one_workload(self, rendered: Rendered) -> None:
        by_name = {pods.name: pods for pods in rendered.workloads}
        for service in rendered.of("Service").values():
            [name] = rendered.selected(service["spec"]["selector"])
            for port in service["spec"]["ports"]:
                target = port.get("targetPort", port["name"])
                assert by_name[name].ports[target] == port["port"]

    def test_clients_do_not_reach_the_admin_port_by_the_service(self, rendered: Rendered) -> None:
        (port,) = rendered.of("Service")[rendered.router.name]["spec"]["ports"]
        assert port["targetPort"] == "http"

    def test_routers_find_each_other(self, rendered: Rendered, settings_of: SettingsOf) -> None:
        settings = settings_of(rendered)
        if settings.admin_port is None:
            assert settings.dns_peers == ()
            return
        [peers] = settings.dns_peers
        service = rendered.of("Service")[peers.host]["spec"]
        # Each by its own address, and one that drains too: it still has requests.
        assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
        assert rendered.selected(service["selector"]) == [rendered.router.name]
        assert rendered.router.ports["admin"] == peers.port == settings.admin_port
        key = rendered.router.variables["PD_ROUTER_PEER_KEY"]["valueFrom"]["secretKeyRef"]
        assert key == {"name": "pd-router-peers", "key": "key", "optional": True}


class TestSecurity:
    def test_the_router_is_not_root_and_writes_nothing(self, rendered: Rendered) -> None:
        pod, container = rendered.router.spec, rendered.router.container
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }

    def test_the_router_runs_as_the_images_user(self, rendered: Rendered) -> None:
        context = rendered.router.spec["securityContext"]
        (user,) = (one.text for one in read(DOCKERFILE.read_text())[-1] if one.name == "USER")
        assert user == f"{context['runAsUser']}:{context['runAsGroup']}"

    @pytest.mark.parametrize("name", [name for name in OVERLAYS if name != "gate"])
    def test_the_admin_port_may_ask_for_keys(self, name: str) -> None:
        rendered = with_admin_key(name)
        pods, settings = rendered.router, rendered.configuration(rendered.router)
        file = PurePath(settings["PD_ROUTER_ADMIN_KEY_FILE"])
        [mount] = [one for one in pods.container["volumeMounts"] if one["name"] == "admin-key"]
        assert PurePath(mount["mountPath"]) == file.parent
        [volume] = [one for one in pods.spec["volumes"] if one["name"] == "admin-key"]
        assert [item["path"] for item in volume["secret"]["items"]] == [file.name]
        # Without a peer key such a router does not start: its pod waits for one.
        peers = pods.variables["PD_ROUTER_PEER_KEY"]["valueFrom"]["secretKeyRef"]
        assert peers == {"name": "pd-router-peers", "key": "key", "optional": False}
        for monitor in rendered.of("ServiceMonitor").values():
            [endpoint] = monitor["spec"]["endpoints"]
            asked = endpoint["authorization"]["credentials"]
            assert asked == {"name": volume["secret"]["secretName"], "key": "prometheus"}

    def test_only_the_router_gets_a_token_of_the_api_server(self, rendered: Rendered) -> None:
        assert rendered.router.spec["automountServiceAccountToken"] is True
        engines = rendered.engines.values()
        assert all(pool.spec["automountServiceAccountToken"] is False for pool in engines)
        account = rendered.router.spec["serviceAccountName"]
        assert rendered.of("ServiceAccount")[account]["automountServiceAccountToken"] is False

    def test_services_do_not_become_variables(self, rendered: Rendered) -> None:
        """A Service named pd-router would set PD_ROUTER_PORT, one named vllm VLLM_PORT."""
        assert all(p.spec["enableServiceLinks"] is False for p in rendered.workloads)


def test_images_have_versions(rendered: Rendered) -> None:
    assert rendered.router.container["image"].endswith(f"pd-router:{project()['version']}")
    for pool in rendered.engines.values():
        assert re.fullmatch(r"\S+:v\d+\.\d+\.\d+", pool.container["image"])


def test_missing_kubectl_is_named_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(Unrendered, match="make install"):
        render(KUBERNETES / "overlays" / "plain")
