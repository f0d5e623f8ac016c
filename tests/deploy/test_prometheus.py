"""The rules for Prometheus are valid, name what exists, and fire when they should."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.places import ROOT
from tests.deploy.site import needs_prometheus
from tests.docs.blocks import tables

RULES = sorted((ROOT / "deploy" / "prometheus").glob("*.yaml"))
CASES = sorted(Path(__file__).parent.glob("prometheus*.yaml"))


def rules() -> list[dict[str, Any]]:
    """All rules."""
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"]]


def test_every_metric_in_a_rule_is_documented() -> None:
    text = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    rows = (row for head, *rows in tables(text) if head[0] == "metric" for row in rows)
    known = {row[0].strip("`") for row in rows}
    for rule in rules():
        for name in re.findall(r"(?<!:)\bpd_router_\w+", rule["expr"]):
            assert {name, re.sub("_(bucket|sum|count)$", "", name)} & known, name


def test_every_recording_in_an_alert_exists() -> None:
    made = {rule["record"] for rule in rules() if "record" in rule}
    asked = {
        name for rule in rules() for name in re.findall(r"\w+:pd_router_\w+:\w+", rule["expr"])
    }
    assert asked <= made


def test_no_rule_mixes_the_releases_of_two_namespaces() -> None:
    for rule in rules():
        for labels in re.findall(r"\b(?:by|on) \(([^)]*)\)", rule["expr"]):
            assert labels.startswith("namespace, job"), rule["expr"]


def test_every_alert_has_summary_severity_and_runbook() -> None:
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
    calm = {**os.environ, "GOGC": "600"}  # a third of its time goes into collecting garbage
    command = ["promtool", *arguments]
    done = subprocess.run(command, env=calm, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
