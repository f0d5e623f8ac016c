"""The rules for Prometheus are valid and name what exists, and their alerts fire and clear."""

import contextlib
import json
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.places import ROOT
from tests.docs.blocks import tables
from tests.docs.running import answers, free_ports, process

RULES = sorted((ROOT / "deploy" / "prometheus").glob("*.yaml"))
CASES = Path(__file__).with_name("prometheus.yaml")

SECONDS = 60.0
"""For a state that must come; only a test that fails waits so long."""

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="needs Prometheus: apt install prometheus",
)

Labels = Mapping[str, str]


def rules() -> list[dict[str, Any]]:
    """All rules."""
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"]]


def test_every_metric_that_a_rule_asks_for_is_documented() -> None:
    text = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    rows = (row for head, *rows in tables(text) if head[0] == "metric" for row in rows)
    known = {row[0].strip("`") for row in rows}
    for rule in rules():
        for name in re.findall(r"(?<!:)\bpd_router_\w+", rule["expr"]):
            assert {name, re.sub("_(bucket|sum|count)$", "", name)} & known, name


def test_every_recording_that_an_alert_asks_for_is_made() -> None:
    made = {rule["record"] for rule in rules() if "record" in rule}
    asked = {
        name for rule in rules() for name in re.findall(r"\w+:pd_router_\w+:\w+", rule["expr"])
    }
    assert asked <= made


def test_every_alert_says_what_is_wrong_how_urgent_it_is_and_what_to_do() -> None:
    for rule in rules():
        if "alert" in rule:
            assert rule["annotations"].keys() == {"summary", "runbook"}, rule["alert"]
            assert rule["labels"]["severity"] in ("page", "ticket"), rule["alert"]


def test_every_alert_has_a_case() -> None:
    cases = CASES.read_text(encoding="utf-8")
    for rule in rules():
        assert rule.get("alert", "") in cases


@needs_prometheus
def test_promtool_finds_them_sound() -> None:
    promtool("check", "rules", *map(str, RULES))


@needs_prometheus
def test_they_fire_when_they_should_and_not_before() -> None:
    promtool("test", "rules", str(CASES))


def promtool(*arguments: str) -> None:
    """It must end with status 0."""
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# A real Prometheus scrapes a real router before simulated engines.


WINDOWS = {"5m": "3s", "15m": "4s", "30m": "4s", "1h": "5s", "6h": "6s"}
"""Windows of time, in which a test need not wait for hours; their order stays."""


def hastened(text: str) -> str:
    """The rules with short windows and delays."""
    text = re.sub(r"\[(\w+)\]", lambda found: f"[{WINDOWS[found[1]]}]", text)
    return re.sub(r"for: \w+", "for: 600ms", text)


def get(url: str) -> Any:
    """A JSON document."""
    with urllib.request.urlopen(url, timeout=SECONDS) as response:
        return json.load(response)


class Site:
    """Three decode engines, a router, and a Prometheus that scrapes its admin port."""

    def __init__(self, folder: Path) -> None:
        ports = free_ports(range(6))
        *engines, router, admin, prometheus = (f"http://127.0.0.1:{port}" for port in ports)
        self.engines, self.router, self.prometheus = engines, router, prometheus
        for path in RULES:
            (folder / path.name).write_text(hastened(path.read_text()))
        configuration = {
            "global": {"scrape_interval": "200ms", "evaluation_interval": "200ms"},
            "rule_files": [str(folder / path.name) for path in RULES],
            "scrape_configs": [
                {
                    "job_name": "pd-router",
                    "static_configs": [{"targets": [admin.removeprefix("http://")]}],
                }
            ],
        }
        (folder / "prometheus.yml").write_text(json.dumps(configuration))
        self.commands = (
            f"exec {sys.executable} -m router.simulator --role decode --step-ms 5 --count 3"
            f" --port {ports[0]}",
            f"exec {sys.executable} -m router.cli serve --port {ports[3]} --admin-port {ports[4]}"
            f" --decode {','.join(engines)} --health-check-interval 0.2 --outlier-ejection-time 1"
            " --max-excluded-percent 100 --load-balancing-strategy round_robin",
            f"exec prometheus --config.file={folder}/prometheus.yml --storage.tsdb.path={folder}/db"
            f" --web.listen-address={prometheus.removeprefix('http://')}",
        )

    def firing(self) -> list[Labels]:
        """The labels of the alerts that fire."""
        alerts = get(f"{self.prometheus}/api/v1/alerts")["data"]["alerts"]
        return [alert["labels"] for alert in alerts if alert["state"] == "firing"]

    def fires(self, alert: str, **labels: str) -> bool:
        """Whether an alert with these labels does."""
        wanted = {"alertname": alert, **labels}.items()
        return any(wanted <= each.items() for each in self.firing())

    def value(self, query: str) -> float | None:
        """The first value of a query."""
        text = urllib.parse.urlencode({"query": query})
        found = get(f"{self.prometheus}/api/v1/query?{text}")["data"]["result"]
        return float(found[0]["value"][1]) if found else None

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait for a state."""
        deadline = time.monotonic() + SECONDS
        while not holds():
            assert time.monotonic() < deadline, f"{what}; firing: {self.firing()}"
            time.sleep(0.1)

    @contextlib.contextmanager
    def fault(self, *engines: str, **faults: object) -> Iterator[None]:
        """Something is wrong with these engines."""
        for engine in engines:
            self._faults(engine, "POST", json.dumps(faults).encode())
        try:
            yield
        finally:
            for engine in engines:
                self._faults(engine, "DELETE", None)

    def _faults(self, engine: str, method: str, body: bytes | None) -> None:
        request = urllib.request.Request(f"{engine}/sim/faults", body, method=method)
        with urllib.request.urlopen(request, timeout=SECONDS) as response:
            assert response.status == 200


def stream(router: str) -> None:
    """A short stream; whatever comes of it."""
    body = {"model": "sim", "prompt": "Hello", "max_tokens": 20, "stream": True}
    head = {"Content-Type": "application/json"}
    asked = urllib.request.Request(f"{router}/v1/completions", json.dumps(body).encode(), head)
    with contextlib.suppress(OSError), urllib.request.urlopen(asked, timeout=SECONDS) as response:
        response.read()


@contextlib.contextmanager
def users(router: str, count: int) -> Iterator[None]:
    """Each asks again as soon as it has its answer."""
    is_over = threading.Event()

    def ask() -> None:
        while not is_over.is_set():
            stream(router)
            is_over.wait(0.05)

    threads = [threading.Thread(target=ask) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    with contextlib.ExitStack() as stack:
        *started, prometheus = (stack.enter_context(process(each)) for each in site.commands)
        answers(site.router, *started)
        site_is_up = "the router is not scraped"
        while prometheus.poll() is None:
            with contextlib.suppress(OSError):
                get(f"{site.prometheus}/api/v1/alerts")
                break
            time.sleep(0.1)
        site.until(lambda: site.value('up{job="pd-router"}') == 1, site_is_up)
        stack.enter_context(users(site.router, 6))
        yield site


AN_ENGINE: list[tuple[str, dict[str, object]]] = [
    ("EngineDown", {"status": 503, "paths": ["/health"]}),
    ("EngineExcluded", {"stall": True}),
    ("EngineSlow", {"slow": 12.0}),
]
ALL_ENGINES: list[tuple[str, dict[str, object]]] = [
    ("PoolExhausted", {"status": 503, "paths": ["/health"]}),
    ("RequestsAreTriedAgain", {"status": 503, "paths": ["/v1/completions"], "rate": 0.3}),
    ("RequestsFail", {"cut_after_tokens": 3}),
    ("FirstTokensAreLate", {"delay_s": 3.0}),
]


@needs_prometheus
def test_alerts_fire_under_faults_and_clear(site: Site) -> None:
    cases = [
        *((alert, site.engines[:1], faults) for alert, faults in AN_ENGINE),
        *((alert, site.engines, faults) for alert, faults in ALL_ENGINES),
    ]
    for alert, engines, faults in cases:
        site.until(lambda: site.firing() == [], f"not quiet before {alert}")
        labels = {"endpoint": engines[0]} if alert.startswith("Engine") else {}
        fires = partial(site.fires, alert, **labels)
        with site.fault(*engines, **faults):
            site.until(fires, f"{alert} does not fire")
        site.until(lambda fires=fires: not fires(), f"{alert} does not clear")  # type: ignore[misc]
