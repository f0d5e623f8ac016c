"""From pods to the engines that the router uses."""

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from router.core.membership.entry import Target
from router.core.values import DECODE, PREFILL, Endpoint, Role
from router.discovery.pod import Pod
from router.discovery.pod_targets import PodTargets, in_both_roles
from tests.discovery.pods import read


def targets(*decode: Pod, prefill: tuple[Pod, ...] = (), ports=(8000,)) -> list[Target]:
    """What pods of both roles lead to."""
    found = PodTargets(ports).find({PREFILL: prefill, DECODE: decode})
    assert list(found) == [each.target.endpoint for each in found.values()]
    return [each.target for each in found.values()]


def test_a_target_is_the_pods_address_and_uid() -> None:
    [found] = targets(read(uid="u1", ip="10.0.0.1"))
    assert found == Target(Endpoint("http://10.0.0.1:8000", DECODE), "u1", is_draining=False)


def test_a_target_has_its_pods_kv_event_address() -> None:
    [found] = targets(read(annotations={"pd-router/kv-events-port": "5557"}))
    assert found.kv_events_port == 5557


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
    assert in_both_roles({PREFILL: (before,), DECODE: (after, read("b"))}) == ("a",)


def test_one_role_alone_has_no_pod_in_both() -> None:
    assert in_both_roles({DECODE: (read(),)}) == ()


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
