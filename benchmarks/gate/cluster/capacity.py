"""Where in a cluster GPUs are free. Pure: nodes and pods are the API server's objects."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.gate.cluster.kubectl import ClusterTrouble

GPU = "nvidia.com/gpu"

Object = Mapping[str, Any]

ENDED = frozenset({"Succeeded", "Failed"})
"""Phases of pods that hold no GPU any more."""

SHOWN = 5
"""Pods that a message names: the largest ones."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node that offers GPUs."""

    name: str
    gpus: int
    holders: tuple[tuple[str, int], ...]
    """Pods with GPUs there (namespace/name), the largest first."""
    trouble: str | None
    """Why no new pods are scheduled there."""

    @property
    def free(self) -> int:
        """GPUs that no pod holds, on a node that takes pods."""
        taken = sum(count for _, count in self.holders)
        return 0 if self.trouble else max(0, self.gpus - taken)

    @property
    def line(self) -> str:
        """For display."""
        if self.trouble:
            return f"{self.name} is {self.trouble}"
        shown = [f"{pod} has {count}" for pod, count in self.holders[:SHOWN]]
        if more := len(self.holders) - len(shown):
            shown.append(f"{more} more pods")
        by = f" ({', '.join(shown)})" if shown else ""
        return f"{self.name}: {self.free} of {self.gpus} free{by}"


def nodes_of(nodes: Iterable[Object], pods: Iterable[Object]) -> list[Node]:
    """The nodes that offer GPUs, those with most free ones first."""
    held: dict[str, dict[str, int]] = {}
    for pod in pods:
        node, count = pod["spec"].get("nodeName"), gpus_of(pod)
        if node and count and pod.get("status", {}).get("phase") not in ENDED:
            name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
            held.setdefault(node, {})[name] = count
    found = []
    for node in nodes:
        name = node["metadata"]["name"]
        gpus = int(node["status"].get("allocatable", {}).get(GPU, 0))
        if gpus:
            holders = sorted(held.get(name, {}).items(), key=lambda each: (-each[1], each[0]))
            found.append(Node(name, gpus, tuple(holders), _trouble(node)))
    return sorted(found, key=lambda each: (-each.free, each.name))


def gpus_of(pod: Object) -> int:
    """What the scheduler counts: all containers together, or one that runs before them."""
    spec = pod["spec"]
    before = [_limit(each) for each in spec.get("initContainers") or ()]
    return max([sum(_limit(each) for each in spec["containers"]), *before])


def _limit(container: Object) -> int:
    return int(container.get("resources", {}).get("limits", {}).get(GPU, 0))


def _trouble(node: Object) -> str | None:
    if node["spec"].get("unschedulable"):
        return "cordoned"
    conditions = node["status"].get("conditions") or ()
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return None if ready else "not ready"


def node_with(wanted: int, nodes: Sequence[Node]) -> Node:
    """The node to benchmark. Raises ClusterTrouble where none has so many free GPUs."""
    if not nodes:
        raise ClusterTrouble(
            f"no node offers {GPU}: are there GPU nodes, and is NVIDIA's device plugin installed?"
        )
    best = nodes[0]
    if best.free >= wanted:
        return best
    states = "; ".join(each.line for each in nodes[:SHOWN])
    advice = f", or benchmark fewer: --gpus {best.free}" if best.free else ""
    raise ClusterTrouble(
        f"no node has {wanted} free GPUs. {states}. End or move pods that hold some{advice}"
    )
