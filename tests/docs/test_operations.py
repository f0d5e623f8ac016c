"""The documented metrics and endpoints are those of a running router."""

import json
import re
import urllib.request
from collections.abc import Iterable
from typing import Any

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.docs.blocks import ROOT, documents, tables
from tests.docs.running import Pools

METRICS = ROOT / "docs/metrics.md"

OF_ENGINES = frozenset({"role", "endpoint"})
BUCKET = frozenset({"le"})


def get(url: str) -> bytes:
    """A page."""
    with urllib.request.urlopen(url, timeout=60) as response:
        return bytes(response.read())


def post(url: str, body: dict[str, Any]) -> bytes:
    """The answer to a request."""
    data = json.dumps(body).encode()
    head = {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, data, head), timeout=60) as response:
        return bytes(response.read())


@pytest.fixture(scope="module")
def families(running_pools: Pools) -> dict[str, Metric]:
    """The router's metrics after a direct and a disaggregated request."""
    for prompt in ("short", "long " * 100):
        body = {"model": "sim", "prompt": prompt, "max_tokens": 4}
        post(f"{running_pools.router}/v1/completions", body)
    while True:  # counts are up to 0.05 s late
        text = get(f"{running_pools.router}/metrics").decode()
        found = {family.name: family for family in text_string_to_metric_families(text)}
        if found["pd_router_prefill_duration_seconds"].samples[-1].value:
            return found


def documented() -> dict[str, tuple[str, frozenset[str]]]:
    """Type and labels by name."""
    text = METRICS.read_text(encoding="utf-8")
    found = {}
    for head, *rows in tables(text):
        if head[0] == "metric":
            for name, kind, labels, _ in rows:
                found[name.strip("`")] = (kind, frozenset(re.findall(r"`(\w+)`", labels)))
    return found


def is_ours(name: str) -> bool:
    """Not one of prometheus-client's own."""
    return not name.startswith("pd_router_process_")


def full_name(family: Metric) -> str:
    """As a query has it."""
    return f"{family.name}_total" if family.type == "counter" else family.name


def test_all_metrics_are_documented_with_their_types(families: dict[str, Metric]) -> None:
    given = {full_name(family): family.type for family in families.values()}
    assert {name: kind for name, (kind, _) in documented().items()} == {
        name: kind for name, kind in given.items() if is_ours(name)
    }


def test_their_labels_are_documented(families: dict[str, Metric]) -> None:
    told = documented()
    wrong = {}
    for name, family in ((full_name(each), each) for each in families.values()):
        given = {frozenset(sample.labels) - BUCKET for sample in family.samples}
        labels = {each - OF_ENGINES if "endpoint" in each else each for each in given}
        if is_ours(name) and labels and labels != {told[name][1]}:
            wrong[name] = labels
    assert wrong == {}


def names_in(texts: Iterable[str]) -> set[str]:
    """The metrics that texts name."""
    return {name for text in texts for name in re.findall(r"\bpd_router_\w+\b(?!\*)", text)}


def test_metrics_named_anywhere_exist(families: dict[str, Metric]) -> None:
    known = set(families)
    for family in families.values():
        known |= {sample.name for sample in family.samples} | {full_name(family)}
    named = names_in(path.read_text(encoding="utf-8") for path in documents())
    assert {name for name in named - known if not name.endswith("_")} == set()


def test_the_fields_of_endpoints_are_documented(running_pools: Pools) -> None:
    [entry, *_] = json.loads(get(f"{running_pools.router}/endpoints"))
    text = METRICS.read_text(encoding="utf-8").partition("## `GET /endpoints`")[2]
    [head, *rows] = next(tables(text))
    assert head[0] == "field"
    assert {word for row in rows for word in re.findall(r"`(\w+)`", row[0])} == set(entry)
