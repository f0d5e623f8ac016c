"""Claim: popular clients see no difference between the router and an engine."""

import json
import urllib.request
from collections.abc import Iterator

import pytest

from tests.clients.clients import CLIENTS, DOCUMENT, Client, row, run
from tests.docs.running import Pools, pools


@pytest.fixture(scope="module")
def started() -> Iterator[Pools]:
    with pools() as found:
        yield found


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_every_case_passes_directly_and_disaggregated(client: Client, started: Pools) -> None:
    if client.missing is not None:
        pytest.skip(f"needs {client.missing}")
    before = _prefilled(started)
    outcomes = run(client, started.router)
    assert not [outcome for outcome in outcomes if not outcome.ok]
    assert row(client, outcomes) in DOCUMENT.read_text(encoding="utf-8"), "write the table anew"
    assert _prefilled(started) > before


def _prefilled(started: Pools) -> int:
    """KV caches that decode engines have read from the prefill engine."""
    with urllib.request.urlopen(f"{started.urls['p0']}/sim/state", timeout=60) as answer:
        return int(json.load(answer)["references"]["read"])
