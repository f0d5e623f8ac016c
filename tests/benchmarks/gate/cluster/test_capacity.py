"""Free GPUs, and the message for too few."""

import pytest

from benchmarks.gate.cluster.capacity import gpus_of, node_with, nodes_of
from benchmarks.gate.cluster.kubectl import ClusterTrouble
from tests.benchmarks.gate.cluster.objects import node, pod


def test_a_pod_holds_its_scheduled_resources() -> None:
    assert gpus_of(pod("p", "n", 2, 1)) == 3
    assert gpus_of(pod("p", "n", 1, before=(4, 2))) == 4
    assert gpus_of(pod("p", "n")) == 0


def test_the_node_with_most_free_gpus_is_taken() -> None:
    pods = [pod("a", "n0", 5), pod("b", "n1", 2)]
    found = node_with(6, nodes_of([node("n0"), node("n1")], pods))
    assert (found.name, found.free) == ("n1", 6)


def test_pods_that_have_ended_or_lie_nowhere_hold_nothing() -> None:
    pods = [
        pod("a", "n0", 8, phase="Succeeded"),
        pod("b", "n0", 8, phase="Failed"),
        pod("c", None, 8),
    ]
    assert node_with(8, nodes_of([node("n0")], pods)).free == 8


@pytest.mark.parametrize("trouble", [{"cordoned": True}, {"ready": False}])
def test_a_node_that_takes_no_pods_has_none_free(trouble: dict[str, bool]) -> None:
    [found] = nodes_of([node("n0", **trouble)], [])
    assert found.free == 0
    with pytest.raises(ClusterTrouble, match=r"n0 is (cordoned|not ready)"):
        node_with(1, [found])


def test_taken_gpus_are_reported_with_their_pods_and_the_remedy() -> None:
    pods = [pod("train-0", "n0", 4), pod("train-1", "n0", 1), pod("web", "n1", 8)]
    with pytest.raises(ClusterTrouble) as told:
        node_with(8, nodes_of([node("n0"), node("n1")], pods))
    assert str(told.value) == (
        "no node has 8 free GPUs. n0: 3 of 8 free (team/train-0 has 4, team/train-1 has 1); "
        "n1: 0 of 8 free (team/web has 8). End or move pods that hold some, or benchmark fewer: "
        "--gpus 3"
    )


def test_many_small_pods_are_counted_and_not_listed() -> None:
    pods = [pod(f"p{number}", "n0", 1) for number in range(8)]
    with pytest.raises(ClusterTrouble, match="team/p4 has 1, 3 more pods"):
        node_with(1, nodes_of([node("n0")], pods))


def test_a_cluster_without_gpus_is_reported() -> None:
    with pytest.raises(ClusterTrouble, match=r"no node offers nvidia.com/gpu.*device plugin"):
        node_with(8, nodes_of([node("n0", None)], []))
