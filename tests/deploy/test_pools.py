"""The router's settings and the pools of engines fit together.

Manifests are rendered and read as data. That vLLM starts with them is not shown here.
"""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from router.discovery.pods import read_annotations
from router.settings import ENV_PREFIX, Settings
from tests.deploy.conftest import OVERLAYS, SettingsOf, overlay
from tests.deploy.places import KUBERNETES
from tests.deploy.rendered import Pods, Rendered, render

TRANSFER = "--kv-transfer-config"
EVENTS = "--kv-events-config"


def transfer(pods: Pods) -> dict[str, object] | None:
    """The configuration of the KV transfer."""
    text = pods.option(TRANSFER)
    return None if text is None else dict(json.loads(text))


def port_in(endpoint: str) -> int:
    """That of tcp://*:PORT."""
    return int(endpoint.rpartition(":")[2])


class TestSettings:
    def test_every_variable_is_a_setting(self, rendered: Rendered) -> None:
        names = [*rendered.configuration(rendered.router), *rendered.router.variables]
        assert "PD_ROUTER_K8S_DECODE_SELECTOR" in names
        for name in names:
            assert name.startswith(ENV_PREFIX)
            assert name.removeprefix(ENV_PREFIX).lower() in Settings.model_fields

    def test_the_router_starts_with_them(self, rendered: Rendered, settings_of: SettingsOf) -> None:
        assert settings_of(rendered).port in rendered.router.ports.values()

    def test_a_plain_pool_has_eight_engines(self, plain: Rendered) -> None:
        assert {name: pool.replicas for name, pool in plain.engines.items()} == {"engine": 8}

    def test_no_key_is_written_down(self, rendered: Rendered) -> None:
        (engine_keys,) = {
            json.dumps(pods.variables["VLLM_API_KEY"]["valueFrom"])
            for pods in rendered.engines.values()
        }
        own = rendered.router.variables["PD_ROUTER_ENGINE_API_KEY"]["valueFrom"]
        assert own == json.loads(engine_keys)
        assert own["secretKeyRef"]["optional"] is True
        assert not rendered.of("Secret")

    def test_the_connector_is_that_of_the_engines(
        self, two_pools: Rendered, settings_of: SettingsOf
    ) -> None:
        names = {"nixl": "NixlConnector", "lmcache": "LMCacheConnectorV1"}
        connector = names[settings_of(two_pools).disagg_connector_type]
        for pool, role in (("prefill", "kv_producer"), ("decode", "kv_consumer")):
            found = transfer(two_pools.engines[pool])
            assert found is not None
            assert (found["kv_connector"], found["kv_role"]) == (connector, role)


class TestEngines:
    def test_a_pod_has_a_name_in_its_pools_headless_service(self, rendered: Rendered) -> None:
        for name, pool in rendered.engines.items():
            service = rendered.of("Service")[pool.workload["spec"]["serviceName"]]
            assert service["spec"]["clusterIP"] == "None"
            assert rendered.selected(service["spec"]["selector"]) == [name]

    def test_a_plain_pool_transfers_nothing(self, plain: Rendered) -> None:
        assert [transfer(pool) for pool in plain.engines.values()] == [None]

    def test_other_hosts_can_fetch_kv_caches(self, disaggregated: Rendered) -> None:
        for pool in disaggregated.engines.values():
            host = pool.variables["VLLM_NIXL_SIDE_CHANNEL_HOST"]
            assert host["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"

    def test_prefill_and_decode_are_of_one_version_and_model(self, two_pools: Rendered) -> None:
        """NIXL refuses to move KV caches between others."""
        pools = two_pools.engines.values()
        assert len({pool.container["image"] for pool in pools}) == 1
        assert len({two_pools.configuration(pool)["MODEL"] for pool in pools}) == 1

    def test_arguments_refer_to_variables_that_exist(self, rendered: Rendered) -> None:
        for pool in rendered.engines.values():
            known = {*rendered.configuration(pool), *pool.variables}
            used = re.findall(r"\$\((\w+)\)", " ".join(pool.container["args"]))
            assert "MODEL" in used
            assert set(used) <= known

    def test_the_port_is_the_one_that_vllm_gets(self, rendered: Rendered) -> None:
        for pool in rendered.engines.values():
            assert pool.option("--port") == str(pool.ports["http"])

    def test_kv_events_are_published_where_all_can_subscribe_and_used(
        self, rendered: Rendered, settings_of: SettingsOf
    ) -> None:
        assert settings_of(rendered).prefix_cache == "events"
        for pool in rendered.engines.values():
            events = json.loads(pool.option(EVENTS) or "")
            assert events["enable_kv_cache_events"] is True
            assert port_in(events["endpoint"]) == pool.ports["kv-events"]
            assert port_in(events["replay_endpoint"]) == pool.ports["kv-replay"]
            # With a host vLLM would connect instead of listening.
            assert "//*:" in events["endpoint"]

    def test_a_connection_is_dropped_by_the_router_first(
        self, rendered: Rendered, settings_of: SettingsOf
    ) -> None:
        for pool in rendered.engines.values():
            vllm = pool.variables.get("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", {"value": "5"})
            assert settings_of(rendered).idle_connection_timeout < float(vllm["value"])


class TestLMCache:
    @pytest.fixture
    def lmcache(self) -> Rendered:
        return overlay("lmcache")

    def test_decode_pod_annotations_match_their_listeners(self, lmcache: Rendered) -> None:
        pool = lmcache.engines["decode"]
        annotations = pool.workload["spec"]["template"]["metadata"]["annotations"]
        receiver = read_annotations(annotations, "10.0.0.1").receiver
        assert receiver is not None
        assert receiver.init_ports == self.ports(pool, "LMCACHE_PD_PEER_INIT_PORT")
        assert receiver.alloc_ports == self.ports(pool, "LMCACHE_PD_PEER_ALLOC_PORT")
        host = pool.variables["LMCACHE_PD_PEER_HOST"]["valueFrom"]
        assert host["fieldRef"]["fieldPath"] == "status.podIP"

    def ports(self, pool: Pods, name: str) -> tuple[int, ...]:
        return tuple(int(port) for port in pool.variables[name]["value"].split(","))

    def test_prefill_engines_report_to_the_one_router(
        self, lmcache: Rendered, settings_of: SettingsOf
    ) -> None:
        pool = lmcache.engines["prefill"]
        host = pool.variables["LMCACHE_PD_PROXY_HOST"]["value"]
        service = lmcache.of("Service")[host]
        assert lmcache.selected(service["spec"]["selector"]) == ["pd-router"]
        [port] = service["spec"]["ports"]
        assert pool.variables["LMCACHE_PD_PROXY_PORT"]["value"] == str(port["port"])
        bound = settings_of(lmcache).lmcache_notify_bind
        assert bound is not None
        assert port_in(bound) == lmcache.router.ports[port["targetPort"]]
        assert lmcache.router.replicas == 1
        assert lmcache.router.workload["spec"]["strategy"]["type"] == "Recreate"

    def test_both_sides_name_blocks_alike_and_have_roles(self, lmcache: Rendered) -> None:
        roles = {}
        for name, pool in lmcache.engines.items():
            configuration = lmcache.configuration(pool)
            assert configuration["PYTHONHASHSEED"] == "0"
            assert configuration["LMCACHE_ENABLE_PD"] == "true"
            roles[name] = pool.variables["LMCACHE_PD_ROLE"]["value"]
        assert roles == {"prefill": "sender", "decode": "receiver"}


# GPUs.


def gpus(rendered: Rendered, pool: Pods) -> int:
    """Those of one engine, by the device plugin or by its claim."""
    resources = pool.container["resources"]
    if "limits" in resources:
        assert "claims" not in resources
        return int(resources["limits"]["nvidia.com/gpu"])
    [claim] = pool.spec["resourceClaims"]
    assert [each["name"] for each in resources["claims"]] == [claim["name"]]
    template = rendered.of("ResourceClaimTemplate")[claim["resourceClaimTemplateName"]]
    [request] = template["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["deviceClassName"] == "gpu.nvidia.com"
    return int(request["exactly"]["count"])


def sized(overlay: str, size: int, folder: Path) -> Rendered:
    """The overlay with engines of so many GPUs."""
    copy = folder / "kubernetes"
    shutil.copytree(KUBERNETES, copy)
    base = "plain" if overlay in ("plain", "gate") else "disaggregated"
    file = copy / "overlays" / base / "kustomization.yaml"
    text, found = re.subn(r"(TENSOR_PARALLEL_SIZE)=\d+", rf"\1={size}", file.read_text())
    assert found == 1
    file.write_text(text)
    return render(copy / "overlays" / overlay)


@pytest.mark.parametrize("name", OVERLAYS)
def test_gpus_follow_the_size_of_an_engine(name: str, tmp_path: Path) -> None:
    rendered = sized(name, 4, tmp_path)
    for pool in rendered.engines.values():
        assert rendered.configuration(pool)["TENSOR_PARALLEL_SIZE"] == "4"
        assert pool.option("--tensor-parallel-size") == "$(TENSOR_PARALLEL_SIZE)"
        assert gpus(rendered, pool) == 4


def products(pool: Pods) -> Iterator[str]:
    """The GPUs on which a pool may run, as nodes are labelled."""
    terms = pool.spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    for term in terms["nodeSelectorTerms"]:
        for expression in term["matchExpressions"]:
            assert (expression["key"], expression["operator"]) == ("nvidia.com/gpu.product", "In")
            yield from expression["values"]


def test_engines_in_production_are_on_h100s() -> None:
    for pool in overlay("production").engines.values():
        assert all(product.startswith("NVIDIA-H100") for product in products(pool))
