"""Receivers: the registry that operators write, and everything that can be wrong with it."""

from typing import Any

import orjson
import pytest

from router.core.plans.lmcache_receivers import Receiver, one_receiver, receivers_from
from tests.core.cast import D0, D1

ENTRY = {
    "receiver_host": "d0.kv",
    "receiver_init_port": [7300, 7301],
    "receiver_alloc_port": [7400, 7401],
}
RECEIVER = Receiver("d0.kv", (7300, 7301), (7400, 7401))
OTHER = ENTRY | {"receiver_host": "d1.kv"}


def test_a_receiver_writes_lmcaches_disagg_spec() -> None:
    assert RECEIVER.ranks == 2
    assert orjson.dumps(RECEIVER.spec("t1")) == (
        b'{"req_id":"t1","receiver_host":"d0.kv","receiver_init_port":[7300,7301],'
        b'"receiver_alloc_port":[7400,7401]}'
    )


def test_urls_of_a_registry_compare_by_their_one_spelling() -> None:
    registry = {"HTTP://D0:8000/": ENTRY, " http://d1:8000": OTHER}
    receivers = receivers_from(registry, [D0, D1])
    assert receivers == {D0: RECEIVER, D1: Receiver("d1.kv", (7300, 7301), (7400, 7401))}


@pytest.mark.parametrize(
    ("registry", "problem"),
    [
        ({}, "http://d0:8000 is missing"),
        ({D1.url: ENTRY}, "http://d0:8000 is missing"),
        ({D0.url: ENTRY, D1.url: OTHER}, "http://d1:8000 is not a decode engine"),
        ({D0.url: ENTRY, "http://D0:8000": ENTRY}, "http://d0:8000 is given twice"),
        ({"d0:8000": ENTRY}, "'d0:8000' must start with http"),
    ],
)
def test_a_registry_names_the_decode_engines_and_no_others(
    registry: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        receivers_from(registry, [D0])


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"receiver_host": None}, "receiver_host must be text, got None"),
        ({"receiver_host": ""}, "receiver_host is empty"),
        ({"receiver_init_port": 7300}, "receiver_init_port must be a list"),
        ({"receiver_alloc_port": "7400,7401"}, "receiver_alloc_port must be a list"),
        ({"receiver_init_port": []}, "receiver_init_port must hold a port per"),
        ({"receiver_alloc_port": []}, "receiver_alloc_port must hold a port per"),
        ({"receiver_init_port": [7300, 0]}, "receiver_init_port: 0 is not a port"),
        ({"receiver_init_port": [7300, 65536]}, "receiver_init_port: 65536 is not"),
        ({"receiver_alloc_port": [-1, 7401]}, "receiver_alloc_port: -1 is not a port"),
        ({"receiver_alloc_port": [True, 7401]}, "receiver_alloc_port: True is not a"),
        ({"receiver_alloc_port": ["7400", 7401]}, "receiver_alloc_port: '7400' is not"),
        ({"receiver_init_port": [7300]}, "hold 1 and 2 ports: one of each per rank"),
        ({"receiver_query_port": [7500]}, "receiver_query_port is not known"),
    ],
)
def test_a_wrong_entry_names_its_url_and_key(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=f"^http://d0:8000: .*{problem}"):
        receivers_from({D0.url: ENTRY | change}, [D0])


@pytest.mark.parametrize("key", list(ENTRY))
def test_a_missing_key_is_named(key: str) -> None:
    entry = {name: value for name, value in ENTRY.items() if name != key}
    with pytest.raises(ValueError, match=f"^http://d0:8000: {key} is missing$"):
        receivers_from({D0.url: entry}, [D0])


@pytest.mark.parametrize("entry", [None, [], "d0.kv:7300"])
def test_an_entry_is_an_object(entry: object) -> None:
    with pytest.raises(ValueError, match=r"^http://d0:8000: must be an object with"):
        receivers_from({D0.url: entry}, [D0])


def test_the_ends_of_the_port_range_are_ports() -> None:
    assert Receiver("d0", (1, 65535), (65535, 1)).ranks == 2


def test_one_decode_engine_needs_no_registry() -> None:
    assert one_receiver([D0], "d0.kv", [7300, 7301], (7400, 7401)) == {D0: RECEIVER}


@pytest.mark.parametrize("decoders", [[], [D0, D1]])
def test_one_receiver_serves_one_decode_engine(decoders: list[Any]) -> None:
    with pytest.raises(ValueError, match=f"^{len(decoders)} decode engines need one"):
        one_receiver(decoders, "d0.kv", [7300], [7400])
