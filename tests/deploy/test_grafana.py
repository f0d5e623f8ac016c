"""Every query of the Grafana dashboard has data when a real Prometheus scrapes a real router."""

import json
import math
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.deploy.places import ROOT
from tests.deploy.site import Site, needs_prometheus, running
from tests.docs.blocks import tables

DASHBOARD = json.loads((ROOT / "deploy/grafana/pd-router.json").read_text(encoding="utf-8"))

PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]

QUERIES = [(panel["title"], target) for panel in PANELS for target in panel["targets"]]

VARIABLES = {"$__rate_interval": "5s", "$namespace": ".*", "$job": ".+"}
"""What Grafana would put in their places."""


def query_of(target: dict[str, Any]) -> str:
    """A query as Prometheus gets it."""
    query: str = target["expr"]
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    assert "$" not in query, query
    return query


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Prompts of more than one token are prefilled remotely; the first ones are not."""
    options = "--routing-threshold 1 --engine-stats-interval 0.2 --prefix-cache events"
    folder = tmp_path_factory.mktemp("grafana")
    with running(folder, options, prefill=1, engine_options="--kv-events") as site:
        yield site


@needs_prometheus
@pytest.mark.parametrize(
    "target", [target for _, target in QUERIES], ids=[f"{t}-{q['refId']}" for t, q in QUERIES]
)
def test_a_query_has_data_under_load(site: Site, target: dict[str, Any]) -> None:
    query = query_of(target)

    def has_data() -> bool:
        found = site.values(query)
        return bool(found) and not any(map(math.isnan, found))

    site.until(has_data, query)


@needs_prometheus
def test_a_metric_that_does_not_exist_is_found(site: Site) -> None:
    assert site.values("sum(rate(pd_router_no_such_metric_total[5s]))") == []


def test_every_metric_of_a_query_is_documented() -> None:
    text = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    rows = (row for head, *rows in tables(text) if head[0] == "metric" for row in rows)
    known = {row[0].strip("`") for row in rows}
    known |= set(re.findall(r"`(pd_router_process_\w+)`", text))
    queries = " ".join(query_of(target) for _, target in QUERIES)
    named = set(re.findall(r"\bpd_router_\w+", queries))
    assert [n for n in named if not {n, re.sub("_(bucket|sum|count)$", "", n)} & known] == []


def test_every_panel_has_a_description_and_uses_the_chosen_source_and_job() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in PANELS:
        assert panel["description"].endswith("."), panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}", panel["title"]
        for target in panel["targets"]:
            selectors = re.findall(r"pd_router_\w+(\{[^}]*\})?", target["expr"])
            assert selectors
            chosen = '{namespace=~"$namespace", job=~"$job"'
            assert all(found.startswith(chosen) for found in selectors), target["expr"]
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert variables.keys() == {"datasource", "namespace", "job"}
    # Outside Kubernetes the label is empty, which .+ is not.
    for name in ("namespace", "job"):
        assert variables[name]["allValue"] == VARIABLES[f"${name}"]


def test_panels_do_not_lie_on_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (place["x"] + column, place["y"] + line)
            for column in range(place["w"])
            for line in range(place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
