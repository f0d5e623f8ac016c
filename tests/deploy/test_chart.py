"""The Helm chart is sound, and renders the objects of the overlays.

Rendered by Helm's own library. That `helm install` works on a cluster is not shown here.
"""

import copy
import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Any

import helm_python as helm
import pytest
import yaml

from benchmarks.gate.profiles import PLATFORMS
from tests.deploy.conftest import OVERLAYS, overlay, with_admin_key
from tests.deploy.places import DEPLOY, HELM
from tests.deploy.rendered import Rendered, objects
from tests.deploy.test_monitoring import unfolded
from tests.deploy.test_pools import products, transfer
from tests.docs.blocks import blocks, commands

Values = dict[str, Any]

H100 = ["NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-NVL", "NVIDIA-H100-PCIe"]

VALUES: Mapping[str, Values] = {
    "disaggregated": {},
    "dra": {"gpuAllocation": "dra"},
    "lmcache": {"connector": "lmcache"},
    "production": {
        "monitoring": {"enabled": True},
        "autoscaling": {"enabled": True},
        "engine": {"gpuProducts": H100},
    },
    "plain": {"topology": "plain"},
    "gate": {"topology": "plain", "gate": {"enabled": True}},
}
"""By the overlay that they come to."""


def files_of(values: Values) -> dict[str, str]:
    """What Helm makes of the chart's templates, by their names."""
    with helm.Chart.load(str(HELM)) as loaded:
        loaded.validate_schema(loaded.merge_values(values))
        files: dict[str, str] = loaded.render(values, name="pd-router", namespace="default")
    return files


def chart(values: Values) -> Rendered:
    """What `helm template` prints."""
    texts = (text for name, text in files_of(values).items() if name.endswith(".yaml"))
    return Rendered(tuple(each for text in texts for each in objects(text)))


# What kustomize and Helm do in ways of their own.


def plain_name(name: str) -> str:
    """Without the hash by which kustomize has pods restarted; Helm has an annotation for it."""
    return re.sub(r"-[0-9a-z]{10}$", "", name)


def normal(each: dict[str, Any]) -> dict[str, Any]:
    """An object without namespace and hashes; lists that are sets are sorted."""
    found = copy.deepcopy(each)
    metadata = found["metadata"]
    metadata.pop("namespace", None)
    if found["kind"] == "ConfigMap":
        metadata["name"] = plain_name(metadata["name"])
    for subject in found.get("subjects", ()):
        subject.pop("namespace", None)
    if found["kind"] == "PrometheusRule":
        found["spec"]["groups"] = unfolded(found["spec"]["groups"])
    template = found["spec"]["template"] if "template" in found.get("spec", {}) else None
    if template is not None:
        annotations = template["metadata"].get("annotations", {})
        annotations.pop("checksum/settings", None)
        if not annotations:
            template["metadata"].pop("annotations", None)
        _sort(template["spec"])
    return found


def _sort(pod: dict[str, Any]) -> None:
    """Sort a pod's lists that are sets."""
    pod.get("volumes", []).sort(key=lambda one: str(one["name"]))
    for container in pod["containers"]:
        for source in container.get("envFrom", ()):
            source["configMapRef"]["name"] = plain_name(source["configMapRef"]["name"])
        for kind in ("env", "ports", "volumeMounts"):
            container.get(kind, []).sort(key=lambda one: str(one["name"]))
        container.get("envFrom", []).sort(key=lambda one: str(one["configMapRef"]))


def by_name(objects: Iterable[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """Normal objects by kind and name; a namespace is made by `helm install --create-namespace`."""
    found = [normal(each) for each in objects if each["kind"] != "Namespace"]
    named = {(each["kind"], each["metadata"]["name"]): each for each in found}
    assert len(named) == len(found)
    return named


@pytest.mark.parametrize("name", OVERLAYS)
def test_it_renders_the_objects_of_an_overlay(name: str) -> None:
    ours, theirs = by_name(chart(VALUES[name]).objects), by_name(overlay(name).objects)
    assert ours.keys() == theirs.keys()
    for key, each in theirs.items():
        assert ours[key] == each, key


@pytest.mark.parametrize("name", [name for name in OVERLAYS if name != "gate"])
def test_admin_keys_render_as_in_the_component(name: str) -> None:
    theirs = with_admin_key(name)
    values = {**VALUES[name], "router": {"adminKeySecret": "pd-router-admin"}}
    assert by_name(chart(values).objects) == by_name(theirs.objects)


def test_helm_finds_nothing_wrong_with_it() -> None:
    found = helm.lint(str(HELM))
    assert found["errors"] == []
    told = [each["error"] for each in found["messages"]]
    assert told == ["icon is recommended"]


def test_the_documents_show_its_notes() -> None:
    notes = files_of({})["pd-router/templates/NOTES.txt"]
    shown = [block.text for block in blocks(DEPLOY / "README.md") if block.language == "text"]
    assert f"{notes.strip()}\n" in shown


def test_the_documents_map_values_to_overlays() -> None:
    text = (DEPLOY / "README.md").read_text(encoding="utf-8")
    table = text.partition("| overlay | the chart's values |")[2].partition("\n\n")[0]
    told = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", table, re.MULTILINE))
    assert told.keys() == VALUES.keys()
    for name, values in told.items():
        sets = [each for each in re.findall(r"`([^`]+)`", values) if "=" in each]
        given = helm.parse_set_string(",".join(sets)) if sets else {}
        if name == "production":  # a list is too long for a table
            given["engine"] = VALUES[name]["engine"]
        assert given == VALUES[name]


def test_documented_helm_values_render() -> None:
    found = [
        command.words
        for block in blocks(DEPLOY / "README.md")
        if block.language == "sh"
        for command in commands(block)
        if command.words[0] == "helm"
    ]
    assert len(found) >= 2
    for words in found:
        sets = [after for word, after in itertools.pairwise(words) if word == "--set"]
        assert chart(helm.parse_set_string(",".join(sets))).router.name == "pd-router"


# Its values.


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"topology": "star"}, "topology"),
        ({"router": {"replica": 3}}, "replica"),
        ({"router": {"settings": {"PD_ROUTER_PORT": 8000}}}, "PD_ROUTER_PORT"),
        ({"router": {"settings": {"ROUTING_THRESHOLD": "1"}}}, "ROUTING_THRESHOLD"),
        ({"engine": {"image": {"tag": "latest"}}}, "tag"),
        ({"engine": {"extraArgs": ["max-num-seqs=1"]}}, "extraArgs"),
        ({"pools": {"decode": {"replicas": -1}}}, "replicas"),
        ({"gate": {"platform": "h100"}}, "platform"),
        ({"monitorin": {}}, "monitorin"),
        ({"gate": {"enabled": True}}, "topology=plain"),
        ({"connector": "lmcache", "autoscaling": {"enabled": True}}, "there is one router"),
        (
            {**VALUES["gate"], "router": {"adminKeySecret": "pd-router-admin"}},
            "router.adminKeySecret",
        ),
    ],
)
def test_wrong_values_are_refused_with_their_names(values: Values, told: str) -> None:
    with pytest.raises(helm.HelmError, match=told):
        chart(values)


def test_a_router_setting_overrides_the_charts() -> None:
    given = {"PD_ROUTER_SHUTDOWN_GRACE": "20", "PD_ROUTER_ENGINE_HEADER": "on"}
    found = chart({"router": {"settings": given}})
    assert given.items() <= found.configuration(found.router).items()


def test_a_changed_setting_restarts_the_routers() -> None:
    def annotations(values: Values) -> Any:
        return chart(values).router.workload["spec"]["template"]["metadata"]["annotations"]

    changed = {"router": {"settings": {"PD_ROUTER_LOG_LEVEL": "debug"}}}
    assert annotations({}) == annotations({})
    assert annotations({}) != annotations(changed)


def test_each_gpu_of_an_lmcache_engine_has_ports_of_its_own() -> None:
    found = chart({"connector": "lmcache", "engine": {"tensorParallelSize": 2}})
    pool = found.engines["decode"]
    told = pool.workload["spec"]["template"]["metadata"]["annotations"]
    assert told["pd-router/lmcache-init-ports"] == "7300,7301"
    assert pool.variables["LMCACHE_PD_PEER_INIT_PORT"]["value"] == "7300,7301"
    transferred = transfer(pool)
    assert transferred is not None
    assert transferred["kv_connector"] == "LMCacheConnectorV1"


def test_engines_run_where_they_may() -> None:
    found = chart({"engine": {"gpuProducts": ["NVIDIA-B200"]}})
    assert [*products(found.engines["decode"])] == ["NVIDIA-B200"]


def test_the_gates_platforms_are_those_of_pd_bench() -> None:
    schema = yaml.safe_load((HELM / "values.schema.json").read_text())
    assert schema["properties"]["gate"]["properties"]["platform"]["enum"] == [*PLATFORMS]
