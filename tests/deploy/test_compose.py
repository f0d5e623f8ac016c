"""The compose files are what Docker's own compose takes, and their commands start a router before
engines. Images are not built and containers not started here."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from router.settings import load
from tests.deploy.places import COMPOSE, DEPLOY, ROOT
from tests.docs.running import answers, process
from tests.ports import own_ports

DOCKER_COMPOSE = Path(sys.executable).parent / "docker-compose"


def configuration(*files: str, profile: str = "") -> dict[str, Any]:
    """What compose makes of these files. A warning is a refusal too."""
    chosen = [part for name in files for part in ("--file", str(COMPOSE / name))]
    profiles = ["--profile", profile] if profile else []
    done = subprocess.run(
        [DOCKER_COMPOSE, *chosen, *profiles, "config", "--format", "json"],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"], "HOME": str(Path.home())},
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def simulated() -> dict[str, Any]:
    """What starts without options."""
    services: dict[str, Any] = configuration("compose.yaml")["services"]
    return services


def test_by_default_there_are_a_router_and_simulated_engines(simulated: dict[str, Any]) -> None:
    assert set(simulated) == {"router", "engines"}
    assert {each["image"] for each in simulated.values()} == {simulated["router"]["image"]}
    assert simulated["engines"]["command"][0] == "simulate-engines"
    assert simulated["router"]["build"] == {
        "context": str(ROOT),
        "dockerfile": "Dockerfile",
        "target": "router",
    }


def test_operators_ports_are_this_machines_own(simulated: dict[str, Any]) -> None:
    every = configuration("compose.yaml", profile="monitoring")["services"]
    ports = {
        (port["target"], port.get("host_ip"))
        for each in every.values()
        for port in each.get("ports", [])
    }
    assert ports == {
        (8000, None),
        *((port, "127.0.0.1") for port in (8001, 9090, 3000)),
    }


def test_streams_get_their_grace_before_the_kill(
    simulated: dict[str, Any], monkeypatch: pytest.MonkeyPatch, no_settings: None
) -> None:
    for name, value in simulated["router"]["environment"].items():
        monkeypatch.setenv(name, value)
    grace = simulated["router"]["stop_grace_period"]
    assert grace == "40s"
    assert load({}).shutdown_grace < 40


def test_its_commands_start_a_router_that_answers(simulated: dict[str, Any]) -> None:
    engines, router = simulated["engines"], simulated["router"]
    ports = {str(old): str(new) for old, new in zip(PORTS, own_ports(PORTS), strict=True)}

    def here(text: str) -> str:
        for old, new in {"engines:": "127.0.0.1:", "0.0.0.0": "127.0.0.1", **ports}.items():
            text = text.replace(old, new)
        return text

    command = f"exec {sys.executable} -m router"
    variables = " ".join(f"{name}={here(value)}" for name, value in router["environment"].items())
    with (
        process(f"{command} {here(' '.join(engines['command']))}") as first,
        process(f"{variables} {command} {' '.join(router['command'])}") as second,
    ):
        url = f"http://127.0.0.1:{ports['8000']}"
        answers(url, first, second)
        body = json.dumps({"model": "sim", "prompt": "Hello", "max_tokens": 2}).encode()
        head = {"Content-Type": "application/json"}
        with urllib.request.urlopen(
            urllib.request.Request(f"{url}/v1/completions", body, head), timeout=60
        ) as response:
            assert json.load(response)["usage"]["completion_tokens"] == 2


PORTS = (8000, 8001, 8101, 8102, 8103)


def test_with_gpus_the_engines_are_vllm_with_both_sides_of_the_transfer() -> None:
    services = configuration("compose.yaml", "gpu.yaml")["services"]
    assert set(services) == {"router", "prefill", "decode-0", "decode-1"}
    environment = services["router"]["environment"]
    named = (environment["PD_ROUTER_PREFILL"] + "," + environment["PD_ROUTER_DECODE"]).split(",")
    engines = [each for each in services if each != "router"]
    assert sorted(named) == sorted(f"http://{name}:8000" for name in engines)
    assert len({services[name]["image"] for name in engines}) == 1
    devices = []
    for name in engines:
        service = services[name]
        transfer = next(a for a in service["command"] if a.startswith("--kv-transfer-config="))
        side = "kv_producer" if name == "prefill" else "kv_consumer"
        assert json.loads(transfer.partition("=")[2])["kv_role"] == side
        assert service["environment"]["VLLM_NIXL_SIDE_CHANNEL_HOST"] == name
        [device] = service["deploy"]["resources"]["reservations"]["devices"]
        devices += device["device_ids"]
    assert sorted(devices) == ["0", "1", "2"]


def mounted(service: Mapping[str, Any]) -> dict[str, Path]:
    """Files of this repository by where they are in the container."""
    return {each["target"]: Path(each["source"]) for each in service["volumes"]}


def test_monitoring_has_the_rules_and_the_dashboard() -> None:
    services = configuration("compose.yaml", profile="monitoring")["services"]
    prometheus, grafana = mounted(services["prometheus"]), mounted(services["grafana"])
    assert all(path.exists() for path in (*prometheus.values(), *grafana.values()))
    settings = yaml.safe_load(prometheus["/etc/prometheus/prometheus.yml"].read_text())
    [pattern] = settings["rule_files"]
    assert prometheus[str(Path(pattern).parent)] == DEPLOY / "prometheus"
    [job] = settings["scrape_configs"]
    admin = services["router"]["environment"]["PD_ROUTER_ADMIN_PORT"]
    assert job["static_configs"][0]["targets"] == [f"router:{admin}"]
    [provider] = yaml.safe_load((COMPOSE / "grafana/dashboards.yaml").read_text())["providers"]
    assert grafana[provider["options"]["path"]] == DEPLOY / "grafana"
