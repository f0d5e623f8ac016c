"""The rules for Prometheus are valid and name what exists, and their alerts fire and clear."""

import contextlib
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.places import ROOT
from tests.deploy.site import Site, needs_prometheus, running
from tests.docs.blocks import tables
from tests.users import users

RULES = sorted((ROOT / "deploy" / "prometheus").glob("*.yaml"))
CASES = sorted(Path(__file__).parent.glob("prometheus*.yaml"))


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


def test_no_rule_mixes_the_releases_of_two_namespaces() -> None:
    for rule in rules():
        for labels in re.findall(r"\b(?:by|on) \(([^)]*)\)", rule["expr"]):
            assert labels.startswith("namespace, job"), rule["expr"]


def test_every_alert_says_what_is_wrong_how_urgent_it_is_and_what_to_do() -> None:
    for rule in rules():
        if "alert" in rule:
            assert rule["annotations"].keys() == {"summary", "runbook"}, rule["alert"]
            assert rule["labels"]["severity"] in ("page", "ticket"), rule["alert"]


def test_every_alert_has_a_case() -> None:
    cases = "".join(path.read_text(encoding="utf-8") for path in CASES)
    for rule in rules():
        assert rule.get("alert", "") in cases


@needs_prometheus
def test_promtool_finds_them_sound() -> None:
    promtool("check", "rules", *map(str, RULES))


@needs_prometheus
def test_they_fire_when_they_should_and_not_before() -> None:
    promtool("test", "rules", *map(str, CASES))


def promtool(*arguments: str) -> None:
    """It must end with status 0."""
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# A real Prometheus scrapes a real router before simulated engines.


WINDOWS = {"5m": "3s", "15m": "4s", "30m": "4s", "1h": "12s", "6h": "14s"}
"""Windows of time, in which a test need not wait for hours; their order stays. In 12 s six users
have more than ten streams of 3 s."""


CONFIGURATION = "router.yaml"


def write_configuration(folder: Path, text: str) -> None:
    """Replace the router's file."""
    new = folder / "new.yaml"
    new.write_text(text)
    new.replace(folder / CONFIGURATION)


def hastened(text: str) -> str:
    """The rules with short windows and delays."""
    text = re.sub(r"\[(\w+)\]", lambda found: f"[{WINDOWS[found[1]]}]", text)
    return re.sub(r"for: \w+", "for: 600ms", text)


@contextlib.contextmanager
def hasty(folder: Path, prefill: int = 0) -> Iterator[Site]:
    """A site with these rules, whose router excludes and takes back engines soon."""
    for path in RULES:
        (folder / path.name).write_text(hastened(path.read_text()))
    write_configuration(folder, "{}")
    options = (
        "--health-check-interval 0.2 --outlier-ejection-time 1 --max-excluded-percent 100"
        f" --load-balancing-strategy round_robin --config {folder / CONFIGURATION}"
        " --routing-threshold 1"
    )
    with running(folder, options, rules=[path.name for path in RULES], prefill=prefill) as site:
        yield site


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with hasty(tmp_path) as site:
        yield site


AN_ENGINE: list[tuple[str, dict[str, object]]] = [
    ("EngineDown", {"reset": "request", "paths": ["/health", "/v1/"]}),
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


@needs_prometheus
def test_alerts_on_remote_prefills_fire_and_clear(tmp_path: Path) -> None:
    with hasty(tmp_path, prefill=1) as site:
        fails: dict[str, object] = {"status": 503, "paths": ["/v1/completions"], "rate": 0.3}
        causes: dict[str, Callable[[], AbstractContextManager[None]]] = {
            "RemotePrefillsFallBack": lambda: site.fault(*site.prefill, **fails),
            # A simulated engine's token is four ASCII characters, or one other byte.
            "PromptEstimatesAreOff": lambda: users(site.router, 2, prompt="字" * 2000),
        }
        for alert, cause in causes.items():
            site.until(lambda: site.firing() == [], f"not quiet before {alert}")
            fires = partial(site.fires, alert)
            with cause():
                site.until(fires, f"{alert} does not fire")
            site.until(lambda fires=fires: not fires(), f"{alert} does not clear")  # type: ignore[misc]


@needs_prometheus
def test_an_alert_fires_while_an_operator_drains_an_engine(site: Site) -> None:
    fires = partial(site.fires, "EngineStuckDraining", endpoint=site.engines[0])
    site.until(lambda: site.firing() == [], "not quiet before")
    site.order("drain", site.engines[0])
    site.until(fires, "it does not fire")
    assert not site.fires("EngineDown")
    site.order("undrain", site.engines[0])
    site.until(lambda: not fires(), "it does not clear")


@needs_prometheus
def test_an_alert_fires_while_a_new_configuration_is_rejected(site: Site, tmp_path: Path) -> None:
    fires = partial(site.fires, "ConfigurationIsRejected")
    site.until(lambda: site.firing() == [], "not quiet before")
    write_configuration(tmp_path, "no_such_setting: 1")
    site.until(fires, "it does not fire")
    write_configuration(tmp_path, "{}")
    site.until(lambda: not fires(), "it does not clear")
