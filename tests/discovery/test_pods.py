"""What is read of pods, and the engines in them."""

import contextlib
import json
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.membership.entry import Target
from router.core.values import DECODE, ENCODE, PREFILL, Endpoint, Receiver, Role
from router.discovery.pods import (
    NO_ANNOTATIONS,
    PREFIX,
    Annotations,
    MalformedObject,
    Pod,
    PodTargets,
    WrongAnnotation,
    in_several_roles,
    read_annotations,
    read_pod,
)
from tests.discovery.pods import pod, read

HOST = "10.0.0.1"
PORTS = {"pd-router/lmcache-init-ports": "7300,7301", "pd-router/lmcache-alloc-ports": "7400, 7401"}


def test_annotations_of_other_programs_are_ignored() -> None:
    assert (
        read_annotations({"prometheus.io/port": "x", "kubernetes.io/y": ""}, HOST) is NO_ANNOTATIONS
    )


def test_the_port_of_kv_events_is_read() -> None:
    given_ = {"pd-router/kv-events-port": "5557"}
    assert read_annotations(given_, HOST) == Annotations(kv_events_port=5557)


def test_a_receiver_is_the_pod_itself_unless_it_names_another_host() -> None:
    own = read_annotations(PORTS, HOST)
    assert own.receiver == Receiver(HOST, (7300, 7301), (7400, 7401))
    other = read_annotations({**PORTS, "pd-router/lmcache-host": "rdma-0"}, HOST)
    assert other.receiver == Receiver("rdma-0", (7300, 7301), (7400, 7401))


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"pd-router/kv-event-port": "1"}, "pd-router/kv-event-port is unknown"),
        ({"pd-router/kv-events-port": "tcp"}, "'tcp' is no port"),
        ({"pd-router/kv-events-port": "0"}, "'0' is no port"),
        ({"pd-router/kv-events-port": "65536"}, "'65536' is no port"),
        ({"pd-router/lmcache-init-ports": "1"}, "pd-router/lmcache-alloc-ports"),
        ({"pd-router/lmcache-host": "r"}, "pd-router/lmcache-init-ports"),
        ({**PORTS, "pd-router/lmcache-alloc-ports": "7400"}, "1 ports and .* 2"),
        ({**PORTS, "pd-router/lmcache-alloc-ports": "1," * 64 + "1"}, "more than 64 ports"),
        ({**PORTS, "pd-router/lmcache-host": "x" * 254}, "longer than 253"),
    ],
)
def test_the_error_is_named(wrong: dict[str, str], named: str) -> None:
    with pytest.raises(WrongAnnotation, match=named):
        read_annotations(wrong, HOST)


@given(st.dictionaries(st.sampled_from([*PORTS, f"{PREFIX}kv-events-port", "x"]), st.text()))
def test_any_text_is_read_or_refused(given_: dict[str, str]) -> None:
    with contextlib.suppress(WrongAnnotation):
        read_annotations(given_, HOST)


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
    assert "pd-router/kv-events-port" in (found.problem or "")


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


def targets(*decode: Pod, prefill: tuple[Pod, ...] = (), ports=(8000,)) -> list[Target]:
    """What pods of both roles lead to."""
    found = PodTargets(ports).find({PREFILL: prefill, DECODE: decode})
    assert list(found) == [each.target.endpoint for each in found.values()]
    return [each.target for each in found.values()]


def test_a_target_is_the_pods_address_and_uid() -> None:
    [found] = targets(read(uid="u1", ip="10.0.0.1"))
    assert found == Target(Endpoint("http://10.0.0.1:8000", DECODE), "u1", is_draining=False)


@pytest.mark.parametrize(("state", "hands_over"), [("leaving", True), ("unready", False)])
def test_only_a_pod_that_ends_hands_its_streams_over(state: str, hands_over: bool) -> None:
    """One that is not ready may be ready again in a moment."""
    [found] = targets(read(leaving=state == "leaving", ready=state == "leaving", started=True))
    assert (found.is_draining, found.hands_over) == (True, hands_over)


def test_a_target_has_its_pods_kv_event_address() -> None:
    [found] = targets(read(annotations={"pd-router/kv-events-port": "5557"}))
    assert found.kv_events_port == 5557


def test_a_target_has_its_pods_zone_by_annotation_or_label() -> None:
    document = pod()
    document["metadata"]["labels"] = {"topology.kubernetes.io/zone": "a"}
    assert [found.zone for found in targets(read_pod(document))] == ["a"]
    document["metadata"]["annotations"] = {"pd-router/zone": "b"}
    assert [found.zone for found in targets(read_pod(document))] == ["b"]


def test_an_ipv6_address_has_brackets() -> None:
    [found] = targets(read(ip="fd00::7"))
    assert found.endpoint.url == "http://[fd00::7]:8000"


def test_pods_on_the_host_network_are_distinguished_by_port_name() -> None:
    first = read("a", ip="192.168.1.7", host_network=True, ports=(("http", 8000),))
    second = read("b", ip="192.168.1.7", host_network=True, ports=(("http", 8001),))
    urls = [each.endpoint.url for each in targets(first, second, ports=("http",))]
    assert urls == ["http://192.168.1.7:8000", "http://192.168.1.7:8001"]


def test_each_port_of_a_pod_is_a_target() -> None:
    found = targets(read(uid="u"), ports=(8000, "http", 8001))
    assert [each.endpoint.url for each in found] == ["http://10.0.0.1:8000", "http://10.0.0.1:8001"]
    assert {each.identity for each in found} == {"u"}


def test_a_pod_without_the_named_port_is_no_target() -> None:
    assert targets(read(), ports=("api",)) == []


def test_a_pod_without_an_address_is_no_target() -> None:
    assert targets(read(ip=None)) == []


def test_of_two_pods_with_one_address_the_one_that_stays_has_it() -> None:
    old = read("old", uid="1", leaving=True, created="2026-11-22T12:00:00Z")
    new = read("new", uid="0", created="2026-11-22T11:00:00Z")
    assert [each.identity for each in targets(old, new)] == ["0"]


def test_of_two_pods_with_one_address_the_younger_has_it() -> None:
    """Another engine by its identity; the knowledge of the old one is dropped."""
    old = read("old", uid="1", created="2026-11-22T11:00:00Z")
    new = read("new", uid="0", created="2026-11-22T12:00:00Z")
    assert [each.identity for each in targets(old, new)] == ["0"]


def test_a_pod_in_both_roles_is_a_decode_engine() -> None:
    """As it is for a moment while its label changes: never two targets, and never none."""
    before = read("a", version=1)
    after = read("a", version=2)
    [found] = targets(after, prefill=(before,))
    assert found.endpoint.role is Role.DECODE
    assert in_several_roles({PREFILL: (before,), DECODE: (after, read("b"))}) == [("a", DECODE)]


def test_a_pod_that_encodes_too_has_its_other_role() -> None:
    a, b = read("a"), read("b", uid="2", ip="10.0.0.2")
    pods = {PREFILL: [a], DECODE: [b], ENCODE: [a, b]}
    found = PodTargets((8000,)).find(pods)
    assert [each.role for each in found] == [PREFILL, DECODE]
    assert in_several_roles(pods) == [("a", PREFILL), ("b", DECODE)]


def test_one_role_alone_has_no_pod_in_several() -> None:
    assert in_several_roles({DECODE: (read(),)}) == []


PODS = st.builds(
    read,
    st.sampled_from("abc"),
    uid=st.sampled_from("123"),
    ip=st.sampled_from(["10.0.0.1", "10.0.0.2", None]),
    leaving=st.booleans(),
    created=st.sampled_from(["2026-11-22T11:00:00Z", "2026-11-22T12:00:00Z"]),
)


@given(st.lists(PODS, max_size=4, unique_by=lambda pod: pod.uid))
def test_targets_depend_on_the_set_and_not_on_its_order(pods: list[Pod]) -> None:
    ways = [targets(*way) for way in permutations(pods)]
    assert all(way == ways[0] for way in ways)
    urls = [each.endpoint.url for each in ways[0]]
    assert urls == sorted(set(urls))


def test_only_a_pod_that_has_changed_is_read_again() -> None:
    targets = PodTargets((8000, "api"))
    one, other = read("a", ip="10.0.0.1"), read("b", ip="10.0.0.2")
    before = targets.find({DECODE: (one, other)})
    changed = read("b", ip="10.0.0.2", version=101, leaving=True)
    after = targets.find({DECODE: (one, changed)})
    first, second = (Endpoint(f"http://10.0.0.{n}:8000", DECODE) for n in (1, 2))
    assert after[first] is before[first]
    assert after[second].target.is_draining
    assert len(list(targets.problems)) == 2
    assert list(targets.find({DECODE: (changed,)})) == [second]
    assert len(list(targets.problems)) == 1


def test_a_pod_is_read_for_each_role() -> None:
    targets = PodTargets((8000,))
    pod = read("a")
    for role in (PREFILL, DECODE):
        (found,) = targets.find({role: (pod,)}).values()
        assert found.target.endpoint.role is role
