"""The router's settings and the pools of engines fit together, URL by URL.

Manifests are rendered and read as data. That vLLM starts with them is not shown here.
"""

import json
import re
import shutil
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from router.settings import ENV_PREFIX, Settings
from tests.deploy.conftest import OVERLAYS, SettingsOf
from tests.deploy.places import KUBERNETES
from tests.deploy.rendered import Pods, Rendered, render

TRANSFER = "--kv-transfer-config"


def transfer(pods: Pods) -> dict[str, object] | None:
    """The configuration of the KV transfer."""
    text = pods.option(TRANSFER)
    return None if text is None else dict(json.loads(text))


class TestSettings:
    def test_every_variable_is_a_setting(self, rendered: Rendered) -> None:
        names = [*rendered.configuration(rendered.router), *rendered.router.variables]
        assert {"PD_ROUTER_DECODE", "PD_ROUTER_K8S_DECODE_SELECTOR"} & set(names)
        for name in names:
            assert name.startswith(ENV_PREFIX)
            assert name.removeprefix(ENV_PREFIX).lower() in Settings.model_fields

    def test_the_router_starts_with_them(self, rendered: Rendered, settings_of: SettingsOf) -> None:
        assert settings_of(rendered).port in rendered.router.ports.values()

    def test_disaggregated_has_both_pools(
        self, disaggregated: Rendered, settings_of: SettingsOf
    ) -> None:
        settings = settings_of(disaggregated)
        assert len(settings.prefill) > 1
        assert len(settings.decode) > 1
        assert settings.disagg_connector_type == "nixl"

    def test_a_plain_pool_has_eight_engines(self, plain: Rendered, settings_of: SettingsOf) -> None:
        settings = settings_of(plain)
        assert len(settings.decode) == 8
        assert not settings.prefill

    def test_no_key_is_written_down(self, rendered: Rendered) -> None:
        (engine_keys,) = {
            json.dumps(pods.variables["VLLM_API_KEY"]["valueFrom"])
            for pods in rendered.engines.values()
        }
        own = rendered.router.variables["PD_ROUTER_ENGINE_API_KEY"]["valueFrom"]
        assert own == json.loads(engine_keys)
        assert own["secretKeyRef"]["optional"] is True
        assert not rendered.of("Secret")


class TestEngines:
    def test_the_urls_are_exactly_the_pods(self, named: Rendered, settings_of: SettingsOf) -> None:
        """A pod's name resolves by a headless Service that its StatefulSet names and selects it."""
        pods = set()
        for name, pool in named.engines.items():
            service = named.of("Service")[pool.workload["spec"]["serviceName"]]
            assert service["spec"]["clusterIP"] == "None"
            assert named.selected(service["spec"]["selector"]) == [name]
            domain = service["metadata"]["name"]
            port = pool.ports["http"]
            pods |= {f"http://{name}-{n}.{domain}:{port}" for n in range(pool.replicas)}
        settings = settings_of(named)
        assert {*settings.prefill, *settings.decode} == pods

    def test_each_role_has_its_side_of_the_transfer(
        self, disaggregated: Rendered, settings_of: SettingsOf
    ) -> None:
        settings = settings_of(disaggregated)
        for urls, role in ((settings.prefill, "kv_producer"), (settings.decode, "kv_consumer")):
            for url in urls:
                pool = (urlsplit(url).hostname or "").rpartition(".")[2]
                found = transfer(disaggregated.engines[pool])
                assert found == {"kv_connector": "NixlConnector", "kv_role": role}

    def test_a_plain_pool_transfers_nothing(self, plain: Rendered) -> None:
        assert [transfer(pool) for pool in plain.engines.values()] == [None]

    def test_other_hosts_can_fetch_kv_caches(self, disaggregated: Rendered) -> None:
        for pool in disaggregated.engines.values():
            host = pool.variables["VLLM_NIXL_SIDE_CHANNEL_HOST"]
            assert host["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"

    def test_prefill_and_decode_are_of_one_version_and_model(self, disaggregated: Rendered) -> None:
        """NIXL refuses to move KV caches between others."""
        pools = disaggregated.engines.values()
        assert len({pool.container["image"] for pool in pools}) == 1
        assert len({disaggregated.configuration(pool)["MODEL"] for pool in pools}) == 1

    def test_arguments_refer_to_variables_that_exist(self, rendered: Rendered) -> None:
        for pool in rendered.engines.values():
            known = {*rendered.configuration(pool), *pool.variables}
            used = re.findall(r"\$\((\w+)\)", " ".join(pool.container["args"]))
            assert "MODEL" in used
            assert set(used) <= known

    def test_the_port_is_the_one_that_vllm_gets(self, rendered: Rendered) -> None:
        for pool in rendered.engines.values():
            assert pool.option("--port") == str(pool.ports["http"])

    def test_a_connection_is_dropped_by_the_router_first(
        self, rendered: Rendered, settings_of: SettingsOf
    ) -> None:
        for pool in rendered.engines.values():
            vllm = pool.variables.get("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", {"value": "5"})
            assert settings_of(rendered).idle_connection_timeout < float(vllm["value"])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_gpus_follow_the_size_of_an_engine(overlay: str, tmp_path: Path) -> None:
    copy = tmp_path / "kubernetes"
    shutil.copytree(KUBERNETES, copy)
    file = copy / "overlays" / overlay / "kustomization.yaml"
    text, found = re.subn(r"(TENSOR_PARALLEL_SIZE)=\d+", r"\1=4", file.read_text())
    assert found == 1
    file.write_text(text)
    rendered = render(copy / "overlays" / overlay)
    for pool in rendered.engines.values():
        assert rendered.configuration(pool)["TENSOR_PARALLEL_SIZE"] == "4"
        assert pool.option("--tensor-parallel-size") == "$(TENSOR_PARALLEL_SIZE)"
        assert int(pool.container["resources"]["limits"]["nvidia.com/gpu"]) == 4
