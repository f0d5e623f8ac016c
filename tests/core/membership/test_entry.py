"""An engine of the fleet: unchanged entries, and its form in JSON."""

import json
from typing import Any

import pytest

from router.core.membership.entry import Entry, Target, endpoint_of, fields_of
from router.core.values import Receiver
from tests.core.fixtures import D0

RECEIVER = Receiver("d0-kv", (7300, 7301), (7400,))
ENTRY = Entry(D0, 3, "uid-1", "dns", receiver=RECEIVER, kv_events_port=5557, zone="a")
TARGET = Target(D0, "uid-1", receiver=RECEIVER, kv_events_port=5557, zone="a")


def test_an_entry_that_its_source_names_as_before_is_as_wanted() -> None:
    assert ENTRY.is_as_wanted("dns", TARGET, is_draining=False)


@pytest.mark.parametrize(
    "change",
    [
        {"is_draining": True},
        {"hands_over": True},
        {"source": "operator"},
        {"receiver": None},
        {"kv_events_port": None},
        {"zone": "b"},
        {"leaving_since": 1.0},
        {"place": 1},
    ],
    ids=str,
)
def test_an_entry_that_differs_in_one_thing_is_not(change: dict[str, Any]) -> None:
    assert not ENTRY._replace(**change).is_as_wanted("dns", TARGET, is_draining=False)


@pytest.mark.parametrize("entry", [ENTRY._replace(place=1), ENTRY.left(7.5, 9), Entry(D0)], ids=str)
def test_an_entry_is_the_same_after_its_way_through_json(entry: Entry) -> None:
    endpoint, *others = json.loads(json.dumps(entry))
    assert Entry(endpoint_of(endpoint), *fields_of(others)) == entry


def test_an_engine_entry_has_no_identity_and_no_drain_by_default() -> None:
    assert Target(D0) == Target(D0, identity="", is_draining=False)
    assert Target(D0) != Target(D0, "uid")
