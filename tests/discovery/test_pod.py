"""Which pods are engines, and where. Names like #1008 are issues of other routers."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.discovery.pod import MalformedObject, read_pod
from tests.discovery.pods import pod, read


def test_a_ready_pod_is_known_by_its_uid_and_address() -> None:
    found = read("decode-0", uid="u1", ip="10.0.0.9", version=7)
    assert (found.uid, found.name, found.ip, found.version) == ("u1", "decode-0", "10.0.0.9", 7)
    assert not found.is_draining


def test_1008_an_evicted_pod_without_an_address_is_no_engine() -> None:
    """production-stack ignored the event and kept the engine."""
    assert read(phase="Failed", ready=False, ip=None).ip is None


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_656_an_address_that_an_ended_pod_still_shows_is_not_used(phase: str) -> None:
    """It may be another pod's: requests went to such addresses for days."""
    assert read(phase=phase, ip="10.0.0.1").ip is None


def test_601_a_pod_that_is_being_deleted_drains_although_it_is_still_ready() -> None:
    found = read(leaving=True, ready=True)
    assert found.is_draining
    assert found.ip is not None, "its streams go on"


def test_a_pod_that_is_no_longer_ready_drains() -> None:
    found = read(ready=False, started=True)
    assert found.is_draining
    assert found.ip is not None


def test_a_pod_that_loads_its_model_is_no_engine_yet() -> None:
    assert read(ready=False, started=False).ip is None


def test_a_pod_without_an_address_is_no_engine_yet() -> None:
    assert read(ip=None, phase="Pending", ready=False, started=False).ip is None


def test_a_pod_without_a_status_is_no_engine_yet() -> None:
    bare = pod()
    del bare["status"]
    assert read_pod(bare).ip is None


def test_readiness_gates_count() -> None:
    """The Ready condition, not that of the containers."""
    gated = pod()
    [ready] = [each for each in gated["status"]["conditions"] if each["type"] == "Ready"]
    ready["status"] = "False"
    assert read_pod(gated).is_draining


def test_ports_are_found_by_name_those_of_sidecars_too() -> None:
    given_ = pod(ports=(("http", 8000), ("kv", 5557)))
    proxy = {"name": "proxy", "ports": [{"name": "proxy", "containerPort": 8100}]}
    given_["spec"]["initContainers"] = [proxy, {"name": "no-ports"}]
    found = read_pod(given_)
    assert [found.port(name) for name in ("http", "kv", "proxy", "none")] == [
        8000,
        5557,
        8100,
        None,
    ]
    assert found.port(9000) == 9000


@pytest.mark.parametrize("number", [0, -1, 65536])
def test_a_port_that_is_none_is_refused(number: int) -> None:
    with pytest.raises(MalformedObject, match="containerPort"):
        read_pod(pod(ports=(("http", number),)))


def test_a_udp_port_is_none() -> None:
    given_ = pod()
    given_["spec"]["containers"][0]["ports"][0]["protocol"] = "UDP"
    assert read_pod(given_).port("http") is None


def test_a_wrong_annotation_costs_the_annotations_and_not_the_engine() -> None:
    found = read(annotations={"pd-router/kv-events-port": "x"})
    assert found.ip is not None
    assert "pd-router/kv-events-port" in (found.trouble or "")


def parts_of(item: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to all values in an object."""
    if isinstance(item, dict):
        inner = list(item.items())
    else:
        inner = list(enumerate(item)) if isinstance(item, list) else []
    found = [path] if path else []
    return found + [each for key, value in inner for each in parts_of(value, (*path, key))]


WHOLE = pod(annotations={"pd-router/kv-events-port": "5557"})


@given(path=st.sampled_from(parts_of(WHOLE)), junk=st.sampled_from([None, 1, "x", [], {}, [1]]))
def test_any_object_is_a_pod_or_refused(path: tuple[Any, ...], junk: Any) -> None:
    broken = json.loads(json.dumps(WHOLE))
    inner = broken
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = junk
    try:
        found = read_pod(broken)
    except MalformedObject:
        return
    assert found.ip is None or found.ip
