"""Objects for the Prometheus Operator: scraped ports, rules, and the router's own labels."""

import contextlib
import json
import shutil
import subprocess
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.conftest import overlay
from tests.deploy.places import DEPLOY, KUBERNETES
from tests.deploy.rendered import Rendered
from tests.deploy.site import get, needs_prometheus
from tests.docs.running import process
from tests.ports import own_ports

ADAPTER = KUBERNETES / "components" / "autoscaling" / "prometheus-adapter.yaml"


@pytest.fixture
def production() -> Rendered:
    return overlay("production")


def rules_of(name: str) -> list[dict[str, Any]]:
    """The groups of a file of deploy/prometheus."""
    groups: list[dict[str, Any]] = yaml.safe_load((DEPLOY / "prometheus" / name).read_text())[
        "groups"
    ]
    return groups


def unfolded(groups: Any) -> Any:
    """The groups with queries on one line: kustomize writes their line breaks anew."""
    return [
        {
            **group,
            "rules": [{**rule, "expr": " ".join(rule["expr"].split())} for rule in group["rules"]],
        }
        for group in groups
    ]


def test_the_operators_rules_are_those_of_deploy_prometheus(production: Rendered) -> None:
    """If not: make manifests"""
    [rule] = production.of("PrometheusRule").values()
    written = rules_of("recording.yaml") + rules_of("alerts.yaml")
    assert unfolded(rule["spec"]["groups"]) == unfolded(written)


def test_every_routers_admin_port_is_scraped(production: Rendered) -> None:
    [monitor] = production.of("ServiceMonitor").values()
    wanted = monitor["spec"]["selector"]["matchLabels"]
    services = production.of("Service").values()
    [service] = [
        each for each in services if wanted.items() <= each["metadata"].get("labels", {}).items()
    ]
    assert service["spec"]["clusterIP"] == "None"
    assert production.selected(service["spec"]["selector"]) == ["pd-router"]
    [endpoint] = monitor["spec"]["endpoints"]
    [port] = service["spec"]["ports"]
    assert endpoint["port"] == port["name"]
    assert production.router.ports["admin"] == port["port"]
    # The job by which the rules and the dashboard go.
    assert service["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "pd-router"


def test_engines_are_scraped(production: Rendered) -> None:
    [monitor] = production.of("PodMonitor").values()
    wanted = monitor["spec"]["selector"]["matchLabels"]
    assert sorted(production.selected(wanted)) == ["decode", "prefill"]
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    assert all(endpoint["port"] in pool.ports for pool in production.engines.values())


def test_the_autoscaler_uses_the_adapters_metric(production: Rendered) -> None:
    [autoscaler] = production.of("HorizontalPodAutoscaler").values()
    [metric] = autoscaler["spec"]["metrics"]
    [rule] = yaml.safe_load(ADAPTER.read_text())["rules"]["custom"]
    assert metric["pods"]["metric"]["name"] == rule["name"]["as"]
    assert autoscaler["spec"]["scaleTargetRef"]["name"] in production.of("Deployment")
    # `apply` would set it back.
    assert "replicas" not in production.router.workload["spec"]


class Scraped:
    """A Prometheus that scrapes a router as the operator would have it."""

    def __init__(self, url: str, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        self._url = url
        self._processes = processes

    def labels(self, query: str) -> dict[str, str]:
        """Those of the only series of a query, when there is one."""
        address = f"{self._url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        while all(each.poll() is None for each in self._processes):
            with contextlib.suppress(OSError):
                if found := get(address)["data"]["result"]:
                    [series] = found
                    labels: dict[str, str] = series["metric"]
                    return labels
            time.sleep(0.1)
        raise AssertionError("a process has ended")


@pytest.fixture
def scraped(production: Rendered, tmp_path: Path) -> Iterator[Scraped]:
    [monitor] = production.of("ServiceMonitor").values()
    [endpoint] = monitor["spec"]["endpoints"]
    router, admin, prometheus = own_ports(range(3))
    operators = {"endpoint": endpoint["port"], "namespace": "default", "pod": "pd-router-0"}
    job = {
        "job_name": "pd-router",
        "static_configs": [{"targets": [f"127.0.0.1:{admin}"], "labels": operators}],
        "relabel_configs": endpoint["relabelings"],
    }
    settings = {"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}
    (tmp_path / "prometheus.yml").write_text(json.dumps(settings))
    serve = f"exec pd-router serve --port {router} --admin-port {admin} --decode http://127.0.0.1:1"
    own = (
        f"exec {shutil.which('prometheus')} --config.file={tmp_path}/prometheus.yml"
        f" --storage.tsdb.path={tmp_path}/db --web.listen-address=127.0.0.1:{prometheus}"
    )
    with process(serve) as first, process(own) as second:
        yield Scraped(f"http://127.0.0.1:{prometheus}", (first, second))


@needs_prometheus
def test_an_engines_url_stays_in_its_label(scraped: Scraped) -> None:
    """The operator labels every series with the port's name, as `endpoint`."""
    query = "pd_router_endpoint_in_flight_requests"
    labels = scraped.labels(query)
    assert labels["endpoint"] == "http://127.0.0.1:1"
    assert "exported_endpoint" not in labels
    # What the autoscaler's metric is summed by.
    [rule] = yaml.safe_load(ADAPTER.read_text())["rules"]["custom"]
    assert set(rule["resources"]["overrides"]) <= labels.keys()
    asked = rule["metricsQuery"].replace("<<.Series>>", query)
    asked = asked.replace("<<.LabelMatchers>>", 'namespace="default"')
    by_pod = scraped.labels(asked.replace("<<.GroupBy>>", "pod"))
    assert by_pod == {"pod": "pd-router-0"}
